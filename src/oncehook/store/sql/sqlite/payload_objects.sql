-- name: reserve_objects
-- Before the objects are written. An event that is recorded needs no object: its delivery is a duplicate.
INSERT INTO webhook_payload_objects (address, size)
SELECT o.value ->> 'address', o.value ->> 'size' FROM json_each(:objects) o
WHERE NOT EXISTS (
    SELECT 1 FROM webhook_receipts r
    WHERE r.source = o.value ->> 'source' AND r.event_id = o.value ->> 'event_id' AND r.tenant = o.value ->> 'tenant'
      AND r.consumer = 'main'
)
RETURNING address

-- name: reserve_object
INSERT INTO webhook_payload_objects (address, size) VALUES (:address, :size)

-- name: take_object
-- For a payload that is encrypted again.
UPDATE webhook_payload_objects SET receipt_id = :id WHERE address = :object AND receipt_id IS NULL AND NOT is_released
RETURNING address

-- name: release_object
UPDATE webhook_payload_objects SET receipt_id = NULL, is_released = true WHERE address = :old_object

-- name: release_unused_objects
-- Objects whose claim did not take them in time: it failed, it was a duplicate, or its process died.
UPDATE webhook_payload_objects SET is_released = true
WHERE address IN (
    SELECT address FROM webhook_payload_objects
    WHERE receipt_id IS NULL AND NOT is_released
      AND created_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', -:seconds || ' seconds')
    ORDER BY created_at LIMIT :limit
)
RETURNING address

-- name: released_objects
SELECT address FROM webhook_payload_objects
WHERE receipt_id IS NULL AND is_released AND address > :after ORDER BY address LIMIT :limit

-- name: delete_objects
DELETE FROM webhook_payload_objects
WHERE is_released AND address IN (SELECT value FROM json_each(:addresses))
RETURNING address

-- name: object_counts
SELECT count(*) AS number, coalesce(sum(size), 0) AS size, coalesce(sum(is_released), 0) AS released
FROM webhook_payload_objects
