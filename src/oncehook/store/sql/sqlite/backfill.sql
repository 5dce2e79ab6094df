-- name: backfill_page
-- The next events that a consumer has no receipt of, oldest first: those with a type and a payload, which the receiver could
-- read.
SELECT m.id AS receipt, m.source, m.tenant, m.event_id, m.type, m.object_id, m.received_at
{> backfill_events}
  AND (m.received_at, m.id) > (:after_time, :after_receipt)
ORDER BY m.received_at, m.id
LIMIT :limit

-- name: backfill_count
SELECT count(*) AS number
{> backfill_events}

-- name: backfill_events
FROM webhook_receipts m
WHERE m.main_id IS NULL AND m.type IS NOT NULL AND NOT (m.status = 'failed' AND m.lease = 0)
  AND +m.source IN (SELECT value FROM json_each(:sources))
  AND (m.type GLOB :type OR m.type GLOB :type || '.*')         --? type
  AND m.received_at >= :since AND m.received_at <= :until
  AND EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = m.id)
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts c WHERE c.main_id = m.id AND c.consumer = :consumer)

-- name: backfill_payloads
SELECT receipt_id AS receipt, body, headers, object FROM webhook_payloads WHERE receipt_id IN (SELECT value FROM json_each(:receipts))

-- name: lock_backfilled_consumer
-- The transaction has the only write lock of the database already.
SELECT source FROM webhook_consumers WHERE name = :consumer ORDER BY source

-- name: lock_backfilled_events
SELECT id FROM webhook_receipts WHERE id IN (SELECT value FROM json_each(:receipts)) ORDER BY id

-- name: backfill
-- A receipt has the received_at of its event. It is due now, after the events that are already waiting, and its age counts
-- from now.
INSERT INTO webhook_receipts (main_id, consumer, source, tenant, provider, event_id, type, object_id, delivery_id,
                              occurred_at, received_at, correlation_id, status, last_error, fingerprint, serial_key,
                              origin, next_attempt_at, leased_at, replayed_at)
SELECT m.id, :consumer, m.source, m.tenant, m.provider, m.event_id, m.type, m.object_id, m.delivery_id, m.occurred_at,
       m.received_at, m.correlation_id, o.value ->> 'status', o.value ->> 'last_error', m.fingerprint, m.serial_key,
       m.origin, CASE WHEN o.value ->> 'status' = 'received' THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END,
       CASE WHEN o.value ->> 'status' = 'received' THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END,
       CASE WHEN o.value ->> 'status' = 'received' THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END
FROM json_each(:rows) o JOIN webhook_receipts m ON m.id = o.value ->> 'receipt'
WHERE EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = m.id)
ORDER BY m.received_at, m.id
ON CONFLICT (source, event_id, tenant, consumer) DO NOTHING
RETURNING main_id, status
