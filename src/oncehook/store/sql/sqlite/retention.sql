-- name: prunable
-- The receipts of an event are deleted together, when all of them are finished. Its payload is counted once.
SELECT r.source, sum(r.received_at < h.value ->> 'receipts') AS receipts,
       sum(r.main_id IS NULL AND EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = r.id)) AS payloads
FROM webhook_receipts r JOIN json_each(:before) h ON h.value ->> 'source' = r.source
WHERE r.status IN ('processed', 'ignored') AND r.received_at < max(h.value ->> 'receipts', h.value ->> 'payloads')
  AND NOT EXISTS (
      SELECT 1 FROM webhook_receipts c
      WHERE c.main_id = coalesce(r.main_id, r.id) AND c.status NOT IN ('processed', 'ignored')
  )
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts m WHERE m.id = r.main_id AND m.status NOT IN ('processed', 'ignored'))
GROUP BY r.source ORDER BY r.source

-- name: old_receipts
-- Receipts of `main` whose event is finished for every consumer. The receipts of an event have the same received_at.
SELECT r.id, r.source, r.received_at, substr(r.received_at, 1, 10) AS day, EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = r.id) AS has_payload
FROM webhook_receipts r CROSS JOIN json_each(:before) h ON h.value ->> 'source' = r.source
WHERE r.status IN ('processed', 'ignored') AND r.received_at < h.value ->> 'before' AND r.received_at < :latest
  AND (r.received_at, r.id) > (:after_time, :after_receipt)
  AND r.main_id IS NULL AND NOT EXISTS (
      SELECT 1 FROM webhook_receipts c WHERE c.main_id = r.id AND c.status NOT IN ('processed', 'ignored')
  )
ORDER BY r.received_at, r.id
LIMIT :limit

-- name: lock_old_receipts
SELECT id, source, main_id FROM webhook_receipts
WHERE id IN (SELECT value FROM json_each(:receipts)) AND status IN ('processed', 'ignored')
ORDER BY id

-- name: copies
SELECT id, main_id FROM webhook_receipts WHERE main_id IN (SELECT value FROM json_each(:receipts))

-- name: prune_payloads
DELETE FROM webhook_payloads WHERE receipt_id IN (SELECT value FROM json_each(:receipts))

-- name: release_objects
UPDATE webhook_payload_objects SET receipt_id = NULL, is_released = true
WHERE receipt_id IN (SELECT value FROM json_each(:receipts))
RETURNING address

-- name: prune_deliveries
DELETE FROM webhook_deliveries WHERE receipt_id IN (SELECT value FROM json_each(:receipts))

-- name: prune_keys
DELETE FROM webhook_keys WHERE receipt_id IN (SELECT value FROM json_each(:receipts))

-- name: prune_attempts
DELETE FROM webhook_past_attempts WHERE receipt_id IN (SELECT value FROM json_each(:receipts))

-- name: prune_receipts
DELETE FROM webhook_receipts WHERE id IN (SELECT value FROM json_each(:receipts))

-- name: free_pages
SELECT freelist_count, page_count FROM pragma_freelist_count, pragma_page_count

-- name: payloads_after
SELECT p.receipt_id, p.body, p.headers, p.object, r.source, r.tenant, r.event_id
FROM webhook_payloads p JOIN webhook_receipts r ON r.id = p.receipt_id
WHERE p.receipt_id > :after ORDER BY p.receipt_id LIMIT :limit

-- name: receipts_with_object
SELECT r.id FROM webhook_receipts r JOIN webhook_payloads p ON p.receipt_id = r.id
WHERE r.object_id = :object_id ORDER BY r.id

-- name: receipts_of_events
-- All receipts of the events that these receipts belong to.
WITH mains AS MATERIALIZED (
    SELECT DISTINCT coalesce(main_id, id) AS id FROM webhook_receipts WHERE id IN (SELECT value FROM json_each(:receipts))
)
SELECT id FROM mains UNION SELECT c.id FROM mains m JOIN webhook_receipts c ON c.main_id = m.id ORDER BY 1

-- name: erase_payloads
DELETE FROM webhook_payloads WHERE receipt_id IN (SELECT value FROM json_each(:receipts)) RETURNING receipt_id

-- name: erase_in_receipts
-- A sealed error cannot be searched, so it is erased with the payload.
UPDATE webhook_receipts
SET object_id = CASE WHEN instr(lower(object_id), :text) THEN NULL ELSE object_id END,
    correlation_id = CASE WHEN instr(lower(correlation_id), :text) THEN NULL ELSE correlation_id END,
    last_error = CASE WHEN instr(lower(last_error), :text) OR instr(last_error, :sealed) THEN '(erased)'
                      ELSE last_error END,
    serial_key = CASE WHEN instr(lower(serial_key), :text) AND status IN ('processed', 'ignored') THEN NULL
                      ELSE serial_key END
WHERE id IN (SELECT value FROM json_each(:receipts))
  AND (instr(lower(coalesce(object_id, '') || ' ' || coalesce(correlation_id, '') || ' ' || coalesce(last_error, '')
                   || ' ' || coalesce(serial_key, '')), :text) OR instr(last_error, :sealed))
RETURNING id

-- name: erase_in_attempts
UPDATE webhook_past_attempts SET error = '(erased)', traceback = NULL
WHERE receipt_id IN (SELECT value FROM json_each(:receipts))
  AND (instr(lower(coalesce(error, '') || ' ' || coalesce(traceback, '')), :text) OR instr(error, :sealed))
RETURNING receipt_id
