-- name: window_end
SELECT r.received_at, r.id FROM webhook_receipts r
WHERE r.id > 0
  AND r.received_at >= :since                                  --? since
  AND r.received_at < :until                                   --? until
  AND (r.received_at, r.id) < (:before_time::timestamptz, :before_receipt::bigint)  --? before_receipt
ORDER BY r.received_at DESC, r.id DESC
OFFSET :skipped LIMIT 1

-- name: known_sources
WITH RECURSIVE known AS (
    (SELECT source FROM webhook_receipts ORDER BY source LIMIT 1)
    UNION ALL
    SELECT (SELECT r.source FROM webhook_receipts r WHERE r.source > known.source ORDER BY r.source LIMIT 1)
    FROM known WHERE known.source IS NOT NULL
)
SELECT source FROM known WHERE source IS NOT NULL

-- name: rates
SELECT 'received' AS series, source, count(*) AS number,
       (floor(extract(epoch FROM received_at) / :seconds::double precision) * :seconds::double precision)::bigint AS bucket
FROM webhook_receipts WHERE received_at >= :since GROUP BY source, bucket
UNION ALL
SELECT 'duplicate', r.source, count(*),
       (floor(extract(epoch FROM d.received_at) / :seconds::double precision) * :seconds::double precision)::bigint AS bucket
FROM webhook_deliveries d JOIN webhook_receipts r ON r.id = d.receipt_id
WHERE d.received_at >= :since GROUP BY r.source, bucket
UNION ALL
SELECT 'failed', r.source, count(*),
       (floor(extract(epoch FROM a.ended_at) / :seconds::double precision) * :seconds::double precision)::bigint AS bucket
FROM webhook_past_attempts a JOIN webhook_receipts r ON r.id = a.receipt_id
WHERE a.outcome IN ('retrying', 'failed', 'crashed') AND a.ended_at >= :since GROUP BY r.source, bucket
UNION ALL
SELECT 'rejected', source, sum(refused)::bigint,
       (floor(extract(epoch FROM minute_at) / :seconds::double precision) * :seconds::double precision)::bigint AS bucket
FROM webhook_refusals WHERE minute_at >= :since GROUP BY source, bucket

-- name: waiting
SELECT source, count(*) AS number FROM (
    SELECT source FROM webhook_receipts
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
    UNION ALL
    SELECT source FROM webhook_receipts
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NOT NULL AND unhandled_at IS NULL
    LIMIT :most
) AS counted GROUP BY source

-- name: dead_letters
SELECT source, count(*) AS number FROM (
    SELECT source FROM webhook_receipts WHERE status = 'failed' ORDER BY received_at DESC, id DESC LIMIT :most
) AS counted GROUP BY source

-- name: last_received
SELECT source, max(received_at) AS received_at FROM (
    SELECT source, received_at FROM webhook_receipts ORDER BY received_at DESC, id DESC LIMIT :most
) AS counted GROUP BY source

-- name: pulse
-- Something of it changes with everything that a page shows. An event that ended well leaves no row behind, but it was
-- among those that wait, of which the first 1000 are counted: those with a serial key, those of inline sources, the others.
SELECT (SELECT received_at FROM webhook_receipts ORDER BY received_at DESC, id DESC LIMIT 1)::text AS receipts,
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

-- name: audited
SELECT id, at, actor, action, detail FROM webhook_audit
WHERE action NOT IN ('replay_batch', 'replay_ended')  -- people see one row a replay
  AND id < :before                                             --? before
ORDER BY id DESC LIMIT :limit

-- name: audited_run
SELECT CASE WHEN action = 'replay_batch' THEN 'replay' ELSE action END AS action, count(*) AS rows, sum((detail::json ->> 'count')::bigint)::bigint AS number, min(at) AS at, max(at) AS last_at,
       min(actor) AS actor, max(CASE WHEN action NOT IN ('replay', 'replay_batch') THEN detail END) AS detail
FROM webhook_audit WHERE action IN ('replay', 'replay_batch', 'replay_started', 'replay_ended') AND detail::json ->> 'run' = :run
GROUP BY 1
