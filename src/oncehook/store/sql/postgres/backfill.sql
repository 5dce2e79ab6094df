-- name: backfill_page
-- The next events that a consumer has no receipt of, oldest first: those with a type and a payload, which the receiver could
-- read. Payloads and the consumer's own receipts are probed for each row, as in old_receipts.
SELECT m.id AS receipt, m.source, m.tenant, m.event_id, m.type, m.object_id, m.received_at
{> backfill_events}
  AND (m.received_at, m.id) > (CAST(:after_time AS timestamptz), CAST(:after_receipt AS bigint))
ORDER BY m.received_at, m.id
LIMIT :limit

-- name: backfill_count
SELECT count(*) AS number
{> backfill_events}

-- name: backfill_events
FROM webhook_receipts m
WHERE m.main_id IS NULL AND m.type IS NOT NULL AND NOT (m.status = 'failed' AND m.lease = 0)
  AND m.source IN (SELECT value FROM json_array_elements_text(CAST(:sources AS json)) AS s (value))
  AND (m.type LIKE :type OR m.type LIKE :type || '.%')         --? type
  AND m.received_at >= CAST(:since AS timestamptz) AND m.received_at <= CAST(:until AS timestamptz)
  AND EXISTS (
      SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = m.id AND p.day = (m.received_at AT TIME ZONE 'UTC')::date OFFSET 0
  )
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts c WHERE c.main_id = m.id AND c.consumer = :consumer OFFSET 0)

-- name: backfill_payloads
SELECT r.id AS receipt, p.body, p.headers, p.object
FROM webhook_receipts r
JOIN webhook_payloads p ON p.receipt_id = r.id AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
WHERE r.id = ANY(CAST(:receipts AS text)::bigint[])

-- name: lock_backfilled_consumer
-- Keeps a person from removing the consumer until its receipts are committed.
SELECT source FROM webhook_consumers WHERE name = :consumer ORDER BY source FOR KEY SHARE

-- name: lock_backfilled_events
-- Keeps the events from being pruned. Workers can still settle them.
SELECT id FROM webhook_receipts WHERE id = ANY(CAST(:receipts AS text)::bigint[]) ORDER BY id FOR KEY SHARE

-- name: backfill
-- A receipt has the received_at of its event, so that it finds the payload. It is due now, after the events that are already
-- waiting, and its age counts from now. `nextval` runs after the sort.
INSERT INTO webhook_receipts (id, main_id, consumer, source, tenant, provider, event_id, type, object_id, delivery_id,
                              occurred_at, received_at, correlation_id, status, last_error, fingerprint, serial_key,
                              origin, next_attempt_at, leased_at, replayed_at)
SELECT nextval('webhook_receipt_ids'), m.id, CAST(:consumer AS text), m.source, m.tenant, m.provider, m.event_id, m.type,
       m.object_id, m.delivery_id, m.occurred_at, m.received_at, m.correlation_id, o.status, o.last_error, m.fingerprint,
       m.serial_key, m.origin, CASE WHEN o.status = 'received' THEN now() END, CASE WHEN o.status = 'received' THEN now() END,
       CASE WHEN o.status = 'received' THEN now() END
FROM json_to_recordset(CAST(:rows AS json)) AS o (receipt bigint, status text, last_error text)
JOIN webhook_receipts m ON m.id = o.receipt
WHERE EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = m.id AND p.day = (m.received_at AT TIME ZONE 'UTC')::date)
ORDER BY m.received_at, m.id
ON CONFLICT (source, event_id, tenant, consumer) DO NOTHING
RETURNING main_id, status
