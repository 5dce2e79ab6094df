-- name: create_bucket
INSERT INTO webhook_rates (consumer, tokens, refilled_at) VALUES (:consumer, CAST(:tokens AS double precision), now())
ON CONFLICT (consumer) DO NOTHING

-- name: lock_bucket
-- Waits for other processes that take tokens of this consumer. The clock is read after that: `now()` would be too early.
WITH locked AS MATERIALIZED (
    SELECT tokens, refilled_at FROM webhook_rates WHERE consumer = :consumer FOR UPDATE
), timed AS MATERIALIZED (
    SELECT tokens, refilled_at, clock_timestamp() AS at FROM locked
)
SELECT tokens, extract(epoch FROM at - refilled_at)::double precision AS elapsed, at FROM timed

-- name: set_tokens
UPDATE webhook_rates SET tokens = CAST(:tokens AS double precision), refilled_at = CAST(:at AS timestamptz)
WHERE consumer = :consumer

-- name: refund_tokens
UPDATE webhook_rates
SET tokens = least(CAST(:burst AS double precision), tokens + CAST(:tokens AS double precision))
WHERE consumer = :consumer
