-- name: create_bucket
INSERT INTO webhook_rates (consumer, tokens, refilled_at)
VALUES (:consumer, :burst, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
ON CONFLICT (consumer) DO NOTHING

-- name: take_tokens
-- The transaction has the only write lock of the database already. `set_tokens` follows, because an UPDATE returns only new values.
SELECT min(:wanted, CAST(available AS INTEGER)) AS granted, available, at, at < refilled_at AS is_earlier
FROM (
    SELECT min(:burst, tokens + max((julianday('now') - julianday(refilled_at)) * 86400, 0) * :rate) AS available,
           strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') AS at, refilled_at
    FROM webhook_rates WHERE consumer = :consumer
)

-- name: set_tokens
UPDATE webhook_rates SET tokens = :tokens, refilled_at = :at WHERE consumer = :consumer

-- name: refund_tokens
UPDATE webhook_rates SET tokens = min(:burst, tokens + :tokens) WHERE consumer = :consumer
