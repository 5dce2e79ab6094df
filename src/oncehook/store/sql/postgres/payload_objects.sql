-- name: reserve_objects
-- Before the objects are written. An event that is recorded needs no object: its delivery is a duplicate.
INSERT INTO webhook_payload_objects (address, size)
SELECT o.address, o.size
FROM json_to_recordset(CAST(:objects AS json)) AS o (address text, size bigint, source text, tenant text, event_id text)
WHERE NOT EXISTS (
    SELECT 1 FROM webhook_receipts r
    WHERE r.source = o.source AND r.event_id = o.event_id AND r.tenant = o.tenant AND r.consumer = 'main'
)
RETURNING address

-- name: reserve_object
INSERT INTO webhook_payload_objects (address, size) VALUES (:address, :size)

-- name: take_object
-- For a payload that is encrypted again.
UPDATE webhook_payload_objects b SET receipt_id = p.receipt_id, day = p.day
FROM webhook_payloads p
WHERE b.address = :object AND b.receipt_id IS NULL AND NOT b.is_released AND p.receipt_id = :id
RETURNING b.address

-- name: release_object
UPDATE webhook_payload_objects SET receipt_id = NULL, day = NULL, is_released = true WHERE address = :old_object

-- name: release_unused_objects
-- Objects whose claim did not take them in time: it failed, it was a duplicate, or its process died.
UPDATE webhook_payload_objects SET is_released = true
WHERE address IN (
    SELECT address FROM webhook_payload_objects
    WHERE receipt_id IS NULL AND NOT is_released AND created_at < now() - :seconds * interval '1 second'
    ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED
)
RETURNING address

-- name: released_objects
SELECT address FROM webhook_payload_objects
WHERE receipt_id IS NULL AND is_released AND address > :after ORDER BY address LIMIT :limit

-- name: delete_objects
DELETE FROM webhook_payload_objects
WHERE is_released AND address IN (SELECT value FROM json_array_elements_text(CAST(:addresses AS json)) AS value)
RETURNING address

-- name: object_counts
SELECT count(*) AS number, coalesce(sum(size), 0)::bigint AS size, count(*) FILTER (WHERE is_released) AS released
FROM webhook_payload_objects
