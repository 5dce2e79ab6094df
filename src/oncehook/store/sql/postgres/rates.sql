-- name: create_bucket
INSERT INTO webhook_rates (consumer, tokens, refilled_at) VALUES (:consumer, CAST(:burst AS double precision), now())
ON CONFLICT (consumer) DO NOTHING

-- name: take_tokens
-- One statement: a process that is stopped in the middle of a transaction would hold the lock of the bucket.
-- The clock is read after other processes have released that lock: `now()` would be too early.
WITH locked AS MATERIALIZED (
    SELECT tokens, refilled_at FROM webhook_rates WHERE consumer = :consumer FOR UPDATE
), timed AS MATERIALIZED (
    SELECT tokens, refilled_at, clock_timestamp() AS at FROM locked
), filled AS MATERIALIZED (
    SELECT at, least(CAST(:burst AS double precision),
                     tokens + greatest(extract(epoch FROM at - refilled_at)::double precision, 0) * CAST(:rate AS double precision)) AS available
    FROM timed
), taken AS MATERIALIZED (
    SELECT at, available, least(CAST(:wanted AS bigint), floor(available)::bigint) AS granted FROM filled
), changed AS (
    UPDATE webhook_rates r SET tokens = taken.available - taken.granted, refilled_at = taken.at
    FROM taken WHERE r.consumer = :consumer AND (taken.granted > 0 OR taken.at < r.refilled_at)
)
SELECT granted, available FROM taken

-- name: refund_tokens
UPDATE webhook_rates
SET tokens = least(CAST(:burst AS double precision), tokens + CAST(:tokens AS double precision))
WHERE consumer = :consumer
