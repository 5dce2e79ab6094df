-- name: last_receipt
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'webhook_receipts'), 0)

-- name: claim
INSERT INTO webhook_receipts (id, source, tenant, provider, event_id, type, object_id, delivery_id, occurred_at,
                              correlation_id, status, last_error, fingerprint, serial_key, origin)
VALUES :rows
ON CONFLICT (source, event_id, tenant, consumer) DO NOTHING

-- name: fresh_receipts
SELECT id FROM webhook_receipts WHERE id > ?

-- name: claim_payload
INSERT INTO webhook_payloads (receipt_id, body, headers, key_id) VALUES :rows

-- name: claim_object
-- Takes the object that has the body, unless it is released.
UPDATE webhook_payload_objects SET receipt_id = ? WHERE address = ? AND receipt_id IS NULL AND NOT is_released

-- name: claim_object_payload
UPDATE webhook_payloads SET object = ? WHERE receipt_id = ?

-- name: claim_copies
-- In the order of arrival, which the ids of the copies follow.
INSERT INTO webhook_receipts (main_id, consumer, status, last_error, serial_key, source, tenant, provider, event_id, type,
                              object_id, delivery_id, occurred_at, correlation_id, fingerprint, received_at, origin)
SELECT r.id, c.value ->> 'consumer', coalesce(c.value ->> 'status', 'received'), c.value ->> 'last_error',
       c.value ->> 'serial_key', r.source, r.tenant, r.provider, r.event_id, r.type, r.object_id, r.delivery_id, r.occurred_at,
       r.correlation_id, r.fingerprint, r.received_at, r.origin
FROM json_each(?) c JOIN webhook_receipts r ON r.id = c.value ->> 'main_id'
WHERE true ORDER BY c.key
ON CONFLICT (source, event_id, tenant, consumer) DO NOTHING

-- name: claim_key
INSERT INTO webhook_keys (source, tenant, key, receipt_id) VALUES (?, ?, ?, ?)

-- name: claim_inline
UPDATE webhook_receipts
SET is_inline = 1, attempts = 1, lease = ?, leased_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    lease_until = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || ? || ' seconds')
WHERE id = ?

-- name: claim_failed
UPDATE webhook_receipts SET failed_at = received_at WHERE id = ?

-- name: claimed_before
SELECT id, status, fingerprint FROM webhook_receipts WHERE source = ? AND event_id = ? AND tenant = ? AND consumer = 'main'

-- name: claimed_by_key
SELECT r.id, r.status, r.fingerprint FROM webhook_keys k JOIN webhook_receipts r ON r.id = k.receipt_id
WHERE k.source = ? AND k.tenant = ? AND k.key = ?

-- name: note_duplicate
INSERT INTO webhook_deliveries (receipt_id, delivery_id, fingerprint, same_body)
SELECT :receipt, :delivery_id, :fingerprint, :same_body
WHERE (SELECT count(*) FROM webhook_deliveries WHERE receipt_id = :receipt AND same_body = :same_body) < :most
  -- It may have been pruned since. After a restored backup, it may be the receipt of another event.
  AND EXISTS (SELECT 1 FROM webhook_receipts r WHERE r.id = :receipt AND (r.fingerprint = :fingerprint) = :same_body)
