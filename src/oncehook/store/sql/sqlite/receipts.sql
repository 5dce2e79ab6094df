-- name: find_receipts
SELECT r.id AS receipt, r.source, r.tenant, r.consumer, r.main_id, r.provider, r.event_id, r.type, r.object_id, r.occurred_at, r.received_at, r.status,
       r.attempts, r.next_attempt_at, r.processed_at, r.failed_at, r.last_error, r.correlation_id, r.delivery_id, r.origin, r.replays,
       CASE WHEN r.status IN ('received', 'retrying') THEN r.unhandled_at END AS unhandled_at,
       (SELECT count(*) FROM webhook_deliveries d WHERE d.receipt_id = coalesce(r.main_id, r.id)) AS duplicates
FROM webhook_receipts r
WHERE r.id > 0
  AND r.id = :receipt                                          --? receipt
  AND r.source = :source                                       --? source
  AND r.tenant = :tenant AND r.tenant <> ''                   --? tenant
  AND r.consumer = :consumer                                   --? consumer
  AND r.source IN (SELECT value FROM json_each(:sources))      --? sources
  AND r.event_id = :event_id                                   --? event_id
  AND (r.type GLOB :type OR r.type GLOB :type || '.*')         --? type
  AND r.object_id = :object                                    --? object
  AND r.status = :status                                       --? status
  AND r.unhandled_at IS NOT NULL AND r.status IN ('received', 'retrying') AND :unhandled  --? unhandled
  AND r.received_at >= :since                                  --? since
  AND r.received_at < :until                                   --? until
  AND (r.received_at, r.id) < (:before_time, :before_receipt)  --? before_receipt
  AND (r.received_at, r.id) >= (:from_time, :from_receipt)  --? from_receipt
  AND (r.event_id = :search OR r.object_id = :search OR r.delivery_id = :search OR r.correlation_id = :search OR EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(r.main_id, r.id) AND instr(p.body, CAST(:search AS BLOB)) > 0))  --? search
ORDER BY r.received_at DESC, r.id DESC
LIMIT :limit

-- name: payload
SELECT p.body, p.headers, p.object FROM webhook_receipts r JOIN webhook_payloads p ON p.receipt_id = coalesce(r.main_id, r.id)
WHERE r.id = :receipt

-- name: consumers_of_event
-- The receipts that all consumers have of an event, that of `main` first.
SELECT r.id AS receipt, r.consumer, r.status, r.attempts, r.replays,
       CASE WHEN r.status IN ('received', 'retrying') THEN r.next_attempt_at END AS next_attempt_at, r.processed_at, r.failed_at,
       CASE WHEN r.status IN ('received', 'retrying') THEN r.unhandled_at END AS unhandled_at, r.handler, r.last_error
FROM webhook_receipts r WHERE r.id = :main OR r.main_id = :main
ORDER BY r.main_id IS NOT NULL, r.consumer, r.id

-- name: duplicates
SELECT received_at, delivery_id, same_body FROM webhook_deliveries
WHERE receipt_id = (SELECT coalesce(main_id, id) FROM webhook_receipts WHERE id = :receipt) ORDER BY id

-- name: attempts
SELECT number, started_at, ended_at, outcome, error, traceback, handler, version, worker
FROM webhook_attempts WHERE receipt_id = :receipt ORDER BY id

-- name: window_end
SELECT r.received_at, r.id FROM webhook_receipts r
WHERE r.id > 0
  AND r.received_at >= :since                                  --? since
  AND r.received_at < :until                                   --? until
  AND (r.received_at, r.id) < (:before_time, :before_receipt)  --? before_receipt
ORDER BY r.received_at DESC, r.id DESC
LIMIT 1 OFFSET :skipped

-- name: known_sources
WITH RECURSIVE known AS (
    SELECT min(source) AS source FROM webhook_receipts
    UNION ALL
    SELECT (SELECT min(r.source) FROM webhook_receipts r WHERE r.source > known.source)
    FROM known WHERE known.source IS NOT NULL
)
SELECT source FROM known WHERE source IS NOT NULL
