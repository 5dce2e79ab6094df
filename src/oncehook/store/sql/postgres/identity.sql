-- name: identity_row
-- `name` changes after a promotion, a recovery, a restored dump and a restart of the server. `receipts` never decreases on
-- one timeline. The relation changes if a restore drops, recreates or truncates the table.
SELECT concat_ws('/', webhook_timeline(), extract(epoch FROM pg_postmaster_start_time()), d.oid, c.oid, c.relfilenode,
                 (SELECT max(epoch) FROM webhook_identity)) AS name,
       coalesce(pg_sequence_last_value('webhook_receipt_ids'), 0) AS receipts, pg_is_in_recovery() AS is_standby
FROM pg_database d, pg_class c
WHERE d.datname = current_database() AND c.oid = 'webhook_receipts'::regclass

-- name: identity
{> identity_row}

-- name: renew_identity
UPDATE webhook_identity SET epoch = :epoch
