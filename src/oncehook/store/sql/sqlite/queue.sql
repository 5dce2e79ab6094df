-- name: lease_listed
-- Leases those of the listed receipts that are due. A message of a queue only names a receipt: this statement decides.
{> take_lease}
WHERE id IN (
    SELECT id FROM webhook_receipts h
    WHERE id IN (SELECT value FROM json_each(:receipts)) AND consumer = :consumer AND status IN ('received', 'retrying')
      AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
      AND (next_attempt_at IS NULL OR next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
           OR leased_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second'))
      AND (crashes > 0) = :rescued AND {> not_paused} AND {> handled_here}
)
{> leased}

-- name: listed_receipts
-- The state of listed receipts, for the messages whose receipts were not leased.
SELECT id AS receipt, source, consumer, serial_key, status, replays, is_inline, crashes > 0 AS is_rescued,
       NOT ({> not_paused}) AS is_paused,
       (julianday(next_attempt_at) - julianday('now')) * 86400 AS due_in,
       (julianday(lease_until) - julianday('now')) * 86400 AS lease_left
FROM webhook_receipts h WHERE id IN (SELECT value FROM json_each(:receipts))

-- name: consumer_copies
-- The receipts that other consumers have of these events.
SELECT id AS receipt, source, event_id, consumer, replays, lease, serial_key, object_id FROM webhook_receipts
WHERE main_id IN (SELECT value FROM json_each(:receipts)) AND status = 'received' ORDER BY id

-- name: overdue
-- Receipts that have been due for `seconds`, and with `most` not for longer than that. No worker has leased them.
SELECT id AS receipt, source, event_id, consumer, replays, lease, serial_key, object_id FROM webhook_receipts h
WHERE consumer = :consumer AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
  AND coalesce(next_attempt_at, received_at) <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')
  AND coalesce(next_attempt_at, received_at) >= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :most || ' seconds')  --? most
  AND {> not_paused}
ORDER BY coalesce(next_attempt_at, received_at), id LIMIT :limit

-- name: overdue_heads
-- The same for receipts with a serial key: the first waiting receipt of each of these keys.
SELECT h.id AS receipt, h.source, h.event_id, h.consumer, h.replays, h.lease, h.serial_key, h.object_id
FROM json_each(:keys) k JOIN webhook_receipts h ON h.id = (
    SELECT r.id FROM webhook_receipts r
    WHERE r.consumer = :consumer AND r.source = k.value ->> 'source' AND r.serial_key = k.value ->> 'key'
      AND r.serial_key IS NOT NULL AND r.status IN ('received', 'retrying') AND r.unhandled_at IS NULL
    ORDER BY r.id LIMIT 1
)
WHERE coalesce(h.next_attempt_at, h.received_at) <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')
  AND coalesce(h.next_attempt_at, h.received_at) >= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :most || ' seconds')  --? most
  AND NOT h.is_inline AND {> not_paused}

-- name: fail_listed
-- Makes dead letters of receipts whose messages a queue has given up, unless a worker has them or they were replayed since.
-- A message names its event too: after a failover or a restored backup, another event may have its receipt's number.
UPDATE webhook_receipts
SET status = 'failed', next_attempt_at = NULL, unhandled_at = NULL, failed_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    last_error = :reason || coalesce('; the last error was: ' || last_error, '')
FROM (
    SELECT value ->> 'receipt' AS receipt, value ->> 'replays' AS replays, value ->> 'source' AS source,
           value ->> 'event_id' AS event_id
    FROM json_each(:input)
) g
WHERE id = g.receipt AND webhook_receipts.replays = g.replays AND webhook_receipts.source = g.source
  AND webhook_receipts.event_id = g.event_id AND NOT is_inline AND status IN ('received', 'retrying')
RETURNING id AS receipt, attempts AS attempt, source, provider, event_id, type, object_id, occurred_at, delivery_id,
          correlation_id, handler, last_error, tenant, consumer
