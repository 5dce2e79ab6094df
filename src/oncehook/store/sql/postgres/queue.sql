-- name: lease_listed
-- Leases those of the listed receipts that are due. A message of a queue only names a receipt: this statement decides.
WITH due AS (
    SELECT id FROM webhook_receipts h
    WHERE id = ANY (CAST(CAST(:receipts AS text) AS bigint[])) AND consumer = :consumer AND status IN ('received', 'retrying')
      AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
      AND (next_attempt_at IS NULL OR next_attempt_at <= now() OR leased_at > now() + interval '1 second')
      AND (crashes > 0) = :rescued AND {> not_paused} AND {> handled_here}
    ORDER BY id FOR UPDATE SKIP LOCKED
), {> leased}

-- name: listed_receipts
-- The state of listed receipts, for the messages whose receipts were not leased.
SELECT id AS receipt, source, consumer, serial_key, status, replays, is_inline, crashes > 0 AS is_rescued,
       NOT ({> not_paused}) AS is_paused,
       extract(epoch FROM next_attempt_at - now())::double precision AS due_in,
       extract(epoch FROM lease_until - now())::double precision AS lease_left
FROM webhook_receipts h WHERE id = ANY (CAST(CAST(:receipts AS text) AS bigint[]))

-- name: consumer_copies
-- The receipts that other consumers have of these events.
SELECT id AS receipt, source, event_id, consumer, replays, lease, serial_key, object_id FROM webhook_receipts
WHERE main_id = ANY (CAST(CAST(:receipts AS text) AS bigint[])) AND status = 'received' ORDER BY id

-- name: overdue
-- Receipts that have been due for `seconds`, and with `most` not for longer than that. No worker has leased them.
SELECT id AS receipt, source, event_id, consumer, replays, lease, serial_key, object_id FROM webhook_receipts h
WHERE consumer = :consumer AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
  AND coalesce(next_attempt_at, received_at) <= now() - CAST(:seconds AS double precision) * interval '1 second'
  AND coalesce(next_attempt_at, received_at) >= now() - CAST(:most AS double precision) * interval '1 second'  --? most
  AND {> not_paused}
ORDER BY coalesce(next_attempt_at, received_at), id LIMIT :limit

-- name: overdue_heads
-- The same for receipts with a serial key: the first waiting receipt of each of these keys.
SELECT h.id AS receipt, h.source, h.event_id, h.consumer, h.replays, h.lease, h.serial_key, h.object_id
FROM json_to_recordset(CAST(:keys AS json)) AS k (source text, key text) CROSS JOIN LATERAL (
    SELECT r.* FROM webhook_receipts r
    WHERE r.consumer = :consumer AND r.source = k.source AND r.serial_key = k.key
      AND r.serial_key IS NOT NULL AND r.status IN ('received', 'retrying') AND r.unhandled_at IS NULL
    ORDER BY r.received_at, r.id LIMIT 1
) h
WHERE coalesce(h.next_attempt_at, h.received_at) <= now() - CAST(:seconds AS double precision) * interval '1 second'
  AND coalesce(h.next_attempt_at, h.received_at) >= now() - CAST(:most AS double precision) * interval '1 second'  --? most
  AND NOT h.is_inline AND {> not_paused}

-- name: fail_listed
-- Makes dead letters of receipts whose messages a queue has given up, unless a worker has them or they were replayed since.
-- A message names its event too: after a failover or a restored backup, another event may have its receipt's number.
UPDATE webhook_receipts r
SET status = 'failed', next_attempt_at = NULL, unhandled_at = NULL, failed_at = now(),
    last_error = :reason || coalesce('; the last error was: ' || last_error, '')
FROM json_to_recordset(CAST(:input AS json)) AS g (receipt bigint, replays bigint, source text, event_id text)
WHERE r.id = g.receipt AND r.replays = g.replays AND r.source = g.source AND r.event_id = g.event_id AND NOT r.is_inline AND r.status IN ('received', 'retrying')
RETURNING r.id AS receipt, r.attempts AS attempt, r.source, r.provider, r.event_id, r.type, r.object_id, r.occurred_at,
          r.delivery_id, r.correlation_id, r.handler, r.last_error, r.tenant, r.consumer
