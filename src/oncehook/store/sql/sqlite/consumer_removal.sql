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
    SELECT * FROM (
        SELECT id, status FROM webhook_receipts
        WHERE consumer = :name AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL
          AND unhandled_at IS NULL
        LIMIT :limit
    )
    UNION ALL
    SELECT * FROM (
        SELECT id, status FROM webhook_receipts
        WHERE consumer = :name AND status IN ('received', 'retrying') AND serial_key IS NOT NULL AND unhandled_at IS NULL
        LIMIT :limit
    )
    UNION ALL
    SELECT * FROM (
        SELECT id, status FROM webhook_receipts
        WHERE consumer = :name AND status IN ('received', 'retrying') AND unhandled_at IS NOT NULL
        LIMIT :limit
    )
    UNION ALL
    SELECT * FROM (SELECT id, status FROM webhook_receipts WHERE consumer = :name AND status = 'processing' LIMIT :limit)
    UNION ALL
    SELECT * FROM (SELECT id, status FROM webhook_receipts WHERE consumer = :name AND status = 'failed' LIMIT :limit)
)

-- name: open_receipt_counts
SELECT status, count(*) AS receipts FROM ({> open_receipts}) AS counted GROUP BY status

-- name: end_receipts
-- The worker of a leased receipt loses its lease: its handler is rolled back.
UPDATE webhook_receipts
SET status = 'ignored', next_attempt_at = NULL, unhandled_at = NULL, failed_at = NULL, lease_until = NULL,
    last_error = :reason || coalesce('; the last error was: ' || last_error, '')
WHERE id IN (SELECT id FROM ({> open_receipts}) LIMIT :limit)
  AND consumer = :name AND status IN ('received', 'retrying', 'processing', 'failed')
RETURNING id
