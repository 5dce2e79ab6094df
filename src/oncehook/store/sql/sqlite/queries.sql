-- name: last_receipt
SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'webhook_receipts'), 0)

-- name: claim
INSERT INTO webhook_receipts (id, source, provider, event_id, type, object_id, delivery_id, occurred_at, correlation_id,
                              status, last_error, fingerprint, serial_key)
VALUES :rows
ON CONFLICT (source, event_id) DO NOTHING

-- name: fresh_receipts
SELECT id FROM webhook_receipts WHERE id > ?

-- name: claim_payload
INSERT INTO webhook_payloads (receipt_id, body, headers) VALUES :rows

-- name: claim_key
INSERT INTO webhook_keys (source, key, receipt_id) VALUES (?, ?, ?)

-- name: claimed_by_key
SELECT r.id, r.status, r.fingerprint FROM webhook_keys k JOIN webhook_receipts r ON r.id = k.receipt_id
WHERE k.source = ? AND k.key = ?

-- name: claimed_before
SELECT id, status, fingerprint FROM webhook_receipts WHERE source = ? AND event_id = ?

-- name: note_duplicate
INSERT INTO webhook_deliveries (receipt_id, delivery_id, fingerprint, same_body)
SELECT :receipt, :delivery_id, :fingerprint, :same_body
WHERE (SELECT count(*) FROM webhook_deliveries WHERE receipt_id = :receipt AND same_body = :same_body) < :most
  AND EXISTS (SELECT 1 FROM webhook_receipts WHERE id = :receipt)  -- it may have been pruned since

-- name: find
SELECT r.id AS receipt, r.source, r.provider, r.event_id, r.type, r.object_id, r.occurred_at, r.received_at, r.status,
       r.attempts, r.next_attempt_at, r.processed_at, r.failed_at, r.last_error, r.correlation_id, r.delivery_id, r.replays,
       CASE WHEN r.status IN ('received', 'retrying') THEN r.unhandled_at END AS unhandled_at,
       (SELECT count(*) FROM webhook_deliveries d WHERE d.receipt_id = r.id) AS duplicates
FROM webhook_receipts r
WHERE r.id > 0
  AND r.id = :receipt                                          --? receipt
  AND r.source = :source                                       --? source
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
  AND (r.event_id = :search OR r.object_id = :search OR r.delivery_id = :search OR r.correlation_id = :search OR EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = r.id AND instr(p.body, CAST(:search AS BLOB)) > 0))  --? search
ORDER BY r.received_at DESC, r.id DESC
LIMIT :limit

-- name: payload
SELECT body, headers FROM webhook_payloads WHERE receipt_id = :receipt

-- name: duplicates
SELECT received_at, delivery_id, same_body FROM webhook_deliveries WHERE receipt_id = :receipt ORDER BY id

-- name: counts
SELECT source, status, count(*) AS receipts, max(received_at) AS last_received_at
FROM webhook_receipts GROUP BY source, status ORDER BY source, status

-- name: counts_duplicates
SELECT r.source, count(*) AS duplicates, count(*) FILTER (WHERE NOT d.same_body) AS other_bodies
FROM webhook_deliveries d JOIN webhook_receipts r ON r.id = d.receipt_id GROUP BY r.source

-- name: applied_migrations
SELECT number, name FROM webhook_migrations

-- name: create_migrations
CREATE TABLE IF NOT EXISTS webhook_migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
)

-- name: record_migration
INSERT INTO webhook_migrations (number, name) VALUES (:number, :name)
