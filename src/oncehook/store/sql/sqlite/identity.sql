-- name: identity_row
SELECT CAST((SELECT max(epoch) FROM webhook_identity) AS TEXT) AS name,
       coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'webhook_receipts'), 0) AS receipts, 0 AS is_standby

-- name: identity
{> identity_row}

-- name: renew_identity
UPDATE webhook_identity SET epoch = :epoch
