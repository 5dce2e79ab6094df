-- name: remove_consumer
DELETE FROM webhook_consumers WHERE name = :name RETURNING source

-- name: remove_consumer_handlers
DELETE FROM webhook_handlers WHERE consumer = :name RETURNING worker

-- name: remove_consumer_rate
DELETE FROM webhook_rates WHERE consumer = :name RETURNING consumer

-- name: remove_consumer_pause
DELETE FROM webhook_pauses WHERE consumer = :name AND source = '' RETURNING consumer

-- name: open_receipts
-- Unfinished receipts and dead letters of a consumer, each part by its own index. A fragment.
SELECT id, status FROM (
    (
        SELECT id, status FROM webhook_receipts
        WHERE consumer = :name AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL
          AND unhandled_at IS NULL
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT id, status FROM webhook_receipts
        WHERE consumer = :name AND status IN ('received', 'retrying') AND serial_key IS NOT NULL AND unhandled_at IS NULL
        LIMIT :limit
    )
    UNION ALL
    (
        SELECT id, status FROM webhook_receipts
        WHERE consumer = :name AND status IN ('received', 'retrying') AND unhandled_at IS NOT NULL
        LIMIT :limit
    )
    UNION ALL
    (SELECT id, status FROM webhook_receipts WHERE consumer = :name AND status = 'processing' LIMIT :limit)
    UNION ALL
    (SELECT id, status FROM webhook_receipts WHERE consumer = :name AND status = 'failed' LIMIT :limit)
) AS parts

-- name: open_receipt_counts
SELECT status, count(*) AS receipts FROM ({> open_receipts}) AS counted GROUP BY status

-- name: end_receipts
-- Skips receipts that a worker settles at this moment. Another worker's lease is lost: its handler is rolled back.
WITH chosen AS (
    SELECT id FROM webhook_receipts
    WHERE id = ANY (ARRAY(SELECT id FROM ({> open_receipts}) AS found ORDER BY id LIMIT :limit))
    ORDER BY id FOR UPDATE SKIP LOCKED
)
UPDATE webhook_receipts r
SET status = 'ignored', next_attempt_at = NULL, unhandled_at = NULL, failed_at = NULL, lease_until = NULL,
    last_error = CAST(:reason AS text) || coalesce('; the last error was: ' || r.last_error, '')
FROM chosen
WHERE r.id = chosen.id AND r.consumer = :name AND r.status IN ('received', 'retrying', 'processing', 'failed')
RETURNING r.id
