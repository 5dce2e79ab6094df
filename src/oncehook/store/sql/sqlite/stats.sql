-- name: dead_letter_groups
SELECT source, consumer, handler, last_error, count(*) AS receipts, min(received_at) AS first_received_at,
       max(received_at) AS last_received_at, min(coalesce(failed_at, received_at)) AS first_failed_at,
       max(coalesce(failed_at, received_at)) AS last_failed_at, max(id) AS last_receipt
FROM webhook_receipts WHERE status = 'failed'
GROUP BY source, consumer, handler, last_error ORDER BY count(*) DESC, max(id) DESC LIMIT :limit

-- name: lags
SELECT source, consumer, (julianday('now') - julianday(min(due))) * 86400 AS lag
FROM (
    SELECT source, consumer, coalesce(next_attempt_at, received_at) AS due FROM webhook_receipts
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
    UNION ALL
    SELECT source, consumer, coalesce(next_attempt_at, received_at) FROM webhook_receipts
    WHERE status IN ('received', 'retrying') AND serial_key IS NOT NULL AND unhandled_at IS NULL
)
GROUP BY source, consumer ORDER BY source, consumer

-- name: rates
SELECT 'received' AS series, source, count(*) AS number,
       CAST(strftime('%s', received_at) AS INTEGER) / :seconds * :seconds AS bucket
FROM webhook_receipts WHERE received_at >= :since AND main_id IS NULL GROUP BY source, bucket
UNION ALL
SELECT 'duplicate', r.source, count(*), CAST(strftime('%s', d.received_at) AS INTEGER) / :seconds * :seconds AS bucket
FROM webhook_deliveries d JOIN webhook_receipts r ON r.id = d.receipt_id
WHERE d.received_at >= :since GROUP BY r.source, bucket
UNION ALL
SELECT 'failed', r.source, count(*), CAST(strftime('%s', a.ended_at) AS INTEGER) / :seconds * :seconds AS bucket
FROM webhook_past_attempts a JOIN webhook_receipts r ON r.id = a.receipt_id
WHERE a.outcome IN ('retrying', 'failed', 'crashed') AND a.ended_at >= :since GROUP BY r.source, bucket
UNION ALL
SELECT 'rejected', source, sum(refused), CAST(strftime('%s', minute_at) AS INTEGER) / :seconds * :seconds AS bucket
FROM webhook_refusals WHERE minute_at >= :since GROUP BY source, bucket

-- name: waiting_counts
SELECT source, consumer, count(*) AS number FROM (
    SELECT source, consumer FROM webhook_receipts
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
    UNION ALL
    SELECT source, consumer FROM webhook_receipts
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NOT NULL AND unhandled_at IS NULL
    LIMIT :most
) AS counted GROUP BY source, consumer

-- name: dead_letter_counts
SELECT source, consumer, count(*) AS number FROM (
    SELECT source, consumer FROM webhook_receipts WHERE status = 'failed' ORDER BY received_at DESC, id DESC LIMIT :most
) AS counted GROUP BY source, consumer

-- name: last_received
SELECT source, max(received_at) AS received_at FROM (
    SELECT source, received_at FROM webhook_receipts WHERE main_id IS NULL ORDER BY received_at DESC, id DESC LIMIT :most
) AS counted GROUP BY source

-- name: change_token
-- At least one value changes whenever data on a page changes. A processed event adds no row, but it is no longer among the
-- waiting events, of which up to 1000 are counted: with a serial key, of inline sources, and others.
SELECT (SELECT received_at FROM webhook_receipts ORDER BY received_at DESC, id DESC LIMIT 1) AS receipts,
       (SELECT max(id) FROM webhook_past_attempts) AS attempts,
       (SELECT count(*) FROM (
           SELECT status FROM webhook_receipts ORDER BY received_at DESC, id DESC LIMIT 200
       ) AS newest WHERE status = 'processed') AS processed,
       (SELECT sum(id) FROM webhook_receipts WHERE status = 'processing') AS processing,
       (SELECT count(*) FROM (
           SELECT 1 FROM webhook_receipts
           WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL LIMIT 1000
       ) AS counted) AS waiting,
       (SELECT count(*) FROM (
           SELECT 1 FROM webhook_receipts
           WHERE status IN ('received', 'retrying') AND serial_key IS NOT NULL AND unhandled_at IS NULL LIMIT 1000
       ) AS counted) AS waiting_serial,
       (SELECT count(*) FROM (
           SELECT 1 FROM webhook_receipts WHERE is_inline AND status = 'retrying' LIMIT 1000
       ) AS counted) AS waiting_inline,
       (SELECT count(*) FROM (
           SELECT 1 FROM webhook_receipts
           WHERE unhandled_at IS NOT NULL AND status IN ('received', 'retrying') LIMIT 1000
       ) AS counted) AS unhandled,
       (SELECT max(id) FROM webhook_deliveries) AS deliveries,
       (SELECT max(id) FROM webhook_audit) AS audit,
       (SELECT max(id) FROM webhook_incidents) AS incidents,
       (SELECT count(*) FROM webhook_incidents WHERE recovered_at IS NULL) AS open_incidents

-- name: receipt_counts
SELECT source, consumer, status, count(*) AS receipts, max(received_at) AS last_received_at
FROM webhook_receipts GROUP BY source, consumer, status ORDER BY source, consumer, status

-- name: duplicate_counts
SELECT r.source, count(*) AS duplicates, count(*) FILTER (WHERE NOT d.same_body) AS other_bodies
FROM webhook_deliveries d JOIN webhook_receipts r ON r.id = d.receipt_id GROUP BY r.source
