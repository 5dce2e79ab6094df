-- name: create_bucket
INSERT INTO webhook_rates (consumer, tokens, refilled_at)
VALUES (:consumer, :tokens, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
ON CONFLICT (consumer) DO NOTHING

-- name: lock_bucket
-- The transaction has the only write lock of the database already.
SELECT tokens, (julianday('now') - julianday(refilled_at)) * 86400 AS elapsed, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') AS at
FROM webhook_rates WHERE consumer = :consumer

-- name: set_tokens
UPDATE webhook_rates SET tokens = :tokens, refilled_at = :at WHERE consumer = :consumer

-- name: refund_tokens
UPDATE webhook_rates SET tokens = min(:burst, tokens + :tokens) WHERE consumer = :consumer
