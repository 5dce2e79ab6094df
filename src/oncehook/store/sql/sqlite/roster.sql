-- name: register_worker
INSERT INTO webhook_workers (name) VALUES (:worker)
ON CONFLICT (name) DO UPDATE
SET registered_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), seen_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')

-- name: remove_handlers
DELETE FROM webhook_handlers
WHERE worker = :worker OR worker IN (
    SELECT name FROM webhook_workers WHERE seen_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-1 hour')
)

-- name: remove_workers
DELETE FROM webhook_workers WHERE seen_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-1 hour')

-- name: register_handlers
INSERT INTO webhook_handlers (worker, consumer, source, pattern, matcher, is_projection)
SELECT :worker, value ->> 'consumer', value ->> 'source', value ->> 'pattern', value ->> 'matcher', value ->> 'is_projection'
FROM json_each(:handlers)

-- name: renew_worker
UPDATE webhook_workers SET seen_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') WHERE name = :worker
RETURNING name

-- name: live_handlers
SELECT worker, consumer, source, pattern, is_projection, seen_at FROM webhook_live_handlers ORDER BY consumer, source, pattern, worker

-- name: waiting_types
-- The types in the next window of due receipts, which begins at `after`, and the end of the window.
SELECT source, type, count(*) AS number, max(due) AS last
FROM (
    SELECT source, type, coalesce(next_attempt_at, received_at) AS due FROM webhook_receipts
    WHERE consumer = :consumer AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
      AND coalesce(next_attempt_at, received_at) <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
      AND coalesce(next_attempt_at, received_at) >= :after
    ORDER BY coalesce(next_attempt_at, received_at), id
    LIMIT :size
) waiting
GROUP BY source, type

-- name: waiting_serial_types
-- The same for receipts with a serial key, in the order of keys.
SELECT source, type, count(*) AS number, max(serial_key) AS last
FROM (
    SELECT source, type, serial_key FROM webhook_receipts
    WHERE consumer = :consumer AND serial_key IS NOT NULL AND status IN ('received', 'retrying') AND unhandled_at IS NULL
      AND (source, serial_key) >= (:source, :key)
    ORDER BY source, serial_key
    LIMIT :size
) waiting
GROUP BY source, type

-- name: hold_unhandled
-- Holds the receipts of these types. Skips a receipt that a worker is just leasing.
UPDATE webhook_receipts SET unhandled_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE id IN (
    SELECT r.id FROM webhook_receipts r
    WHERE r.consumer = :consumer AND r.status IN ('received', 'retrying') AND NOT r.is_inline AND r.serial_key IS NULL AND r.unhandled_at IS NULL
      AND coalesce(r.next_attempt_at, r.received_at) <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
      AND coalesce(r.next_attempt_at, r.received_at) >= :after
      AND coalesce(r.next_attempt_at, r.received_at) <= :last
      AND (+r.source, r.type) IN (SELECT value ->> 'source', value ->> 'type' FROM json_each(:types))
    ORDER BY r.id LIMIT :size
)
RETURNING source, type

-- name: hold_unhandled_serial
UPDATE webhook_receipts SET unhandled_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE id IN (
    SELECT r.id FROM webhook_receipts r
    WHERE r.consumer = :consumer AND r.serial_key IS NOT NULL AND r.status IN ('received', 'retrying') AND r.unhandled_at IS NULL
      AND (r.source, r.serial_key) >= (:source, :key) AND (r.source, r.serial_key) <= (:last_source, :last_key)
      AND (+r.source, r.type) IN (SELECT value ->> 'source', value ->> 'type' FROM json_each(:types))
    ORDER BY r.id LIMIT :size
)
RETURNING source, type

-- name: unhandled_types
-- Probes the index once per type, regardless of the number of waiting receipts.
WITH RECURSIVE types (source, type) AS (
    SELECT source, type FROM (
        SELECT source, type FROM webhook_receipts
        WHERE consumer = :consumer AND unhandled_at IS NOT NULL AND status IN ('received', 'retrying') ORDER BY source, type LIMIT 1
    )
    UNION ALL
    SELECT r.source, r.type FROM types t JOIN webhook_receipts r ON r.id = coalesce(
        (
            SELECT n.id FROM webhook_receipts n
            WHERE n.consumer = :consumer AND n.unhandled_at IS NOT NULL AND n.status IN ('received', 'retrying')
              AND n.source = t.source AND n.type > t.type
            ORDER BY n.type LIMIT 1
        ),
        (
            SELECT n.id FROM webhook_receipts n
            WHERE n.consumer = :consumer AND n.unhandled_at IS NOT NULL AND n.status IN ('received', 'retrying') AND n.source > t.source
            ORDER BY n.source, n.type LIMIT 1
        )
    )
    LIMIT :most
)
SELECT source, type FROM types

-- name: release_unhandled
-- Releases held receipts of a type that some process handles now, the oldest first.
UPDATE webhook_receipts SET unhandled_at = NULL
WHERE id IN (
    SELECT r.id FROM webhook_receipts r
    WHERE r.unhandled_at IS NOT NULL AND r.status IN ('received', 'retrying')
      AND r.consumer = :consumer AND r.source = :source AND r.type = :type
    ORDER BY r.received_at, r.id LIMIT :size
)
RETURNING id

-- name: ignore_unhandled
-- Ignores receipts that had no handler for `seconds`, unless a process has registered within the last minute: the caller may
-- have read the handlers before that.
UPDATE webhook_receipts SET status = 'ignored', last_error = :reason, unhandled_at = NULL, next_attempt_at = NULL
WHERE id IN (
    SELECT r.id FROM webhook_receipts r
    WHERE r.unhandled_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')
      AND r.unhandled_at IS NOT NULL AND r.status IN ('received', 'retrying')
      AND r.consumer = :consumer AND r.source = :source AND r.type = :type
      AND NOT EXISTS (
          SELECT 1 FROM webhook_workers WHERE registered_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-60 seconds')
      )
    ORDER BY r.received_at, r.id LIMIT :size
)
RETURNING id

-- name: unhandled
SELECT source, consumer, count(*) AS number, min(unhandled_at) AS since FROM webhook_receipts
WHERE unhandled_at IS NOT NULL AND status IN ('received', 'retrying')
GROUP BY +source, +consumer ORDER BY +source, +consumer  -- the index of waiting events, not the one of all sources
