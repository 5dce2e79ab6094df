-- name: handled_here
-- Whether this process handles the receipt `h`: by a handler or a forward, or by a projection if no process has a handler.
-- A fragment of the statements that lease.
(
    (h.source || ' ' || h.type) LIKE ANY (CAST(:handled AS text[]))
    OR h.source = ANY (CAST(:projected AS text[])) AND NOT EXISTS (
        SELECT 1 FROM webhook_live_handlers l
        WHERE l.consumer = 'main' AND l.source = h.source AND NOT l.is_projection AND (h.type LIKE l.matcher OR h.type LIKE l.matcher || '.%')
    )
)

-- name: not_paused
-- Whether the source of the receipt `h` and the consumer are not paused. A fragment.
h.source <> ALL (ARRAY(SELECT source FROM webhook_pauses)) AND :consumer <> ALL (ARRAY(SELECT consumer FROM webhook_pauses))

-- name: leased
-- The end of the statements that lease the receipts `due`, in the order in which they are due. A fragment.
leased AS (
    UPDATE webhook_receipts r
    SET status = 'processing', attempts = attempts + 1, lease = lease + 1 + floor(random() * 4294967296)::bigint, leased_at = now(), worker = :worker,
        lease_until = now() + :seconds * interval '1 second'
    FROM due WHERE r.id = due.id
    RETURNING r.id, r.lease, r.attempts, r.source, r.provider, r.event_id, r.type, r.object_id, r.occurred_at, r.received_at,
              r.delivery_id, r.correlation_id, r.replays, r.next_attempt_at, r.tenant, r.consumer, r.main_id
)
SELECT l.id AS receipt, l.lease, l.attempts AS attempt, l.source, l.provider, l.event_id, l.type, l.object_id, l.occurred_at,
       l.received_at, l.delivery_id, l.correlation_id, l.replays, l.tenant, l.consumer, p.body, p.headers, p.object
FROM leased l LEFT JOIN webhook_payloads p ON p.receipt_id = coalesce(l.main_id, l.id) AND p.day = (l.received_at AT TIME ZONE 'UTC')::date
ORDER BY coalesce(l.next_attempt_at, l.received_at), l.id

-- name: lease
-- The columns have the names of `Leased`. A receipt is due if it has no next_attempt_at, or if that was written in the future
-- because the clock was set back. The second is for transactions that began before another one wrote it. All waiting receipts
-- are read only if the newest one shows a clock set back; `due_times.sql` is for the others.
WITH due AS (
    SELECT id FROM webhook_receipts h
    WHERE consumer = :consumer AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
      AND coalesce(next_attempt_at, received_at) <= CASE
          WHEN (SELECT max(received_at) FROM webhook_receipts) > now() + interval '1 second' THEN 'infinity' ELSE now() END
      AND (next_attempt_at IS NULL OR next_attempt_at <= now() OR leased_at > now() + interval '1 second')
      AND coalesce(next_attempt_at, received_at) >= CAST(CAST(:floor AS text) AS timestamptz)
      AND (crashes > 0) = :rescued AND {> not_paused} AND {> handled_here}
      AND tenant = :tenant                                     --? tenant
    ORDER BY coalesce(next_attempt_at, received_at), id
    LIMIT :limit FOR UPDATE SKIP LOCKED
), {> leased}

-- name: extend
-- If the clock went back, the lease begins now: otherwise `expired` would take it for that of a dead worker.
UPDATE webhook_receipts r SET lease_until = now() + :seconds * interval '1 second', leased_at = least(leased_at, now())
FROM (
    SELECT w.id FROM webhook_receipts w
    JOIN json_to_recordset(CAST(:held AS json)) AS h (receipt bigint, lease bigint) ON h.receipt = w.id AND h.lease = w.lease
    WHERE w.status = 'processing' FOR UPDATE OF w SKIP LOCKED
) held
WHERE r.id = held.id

-- name: settle
SELECT receipt FROM webhook_settle(CAST(:input AS json)) AS receipt

-- name: release
-- A receipt that was leased was due. If the clock went back since, it still is.
UPDATE webhook_receipts r
SET status = CASE WHEN attempts > 1 OR is_inline THEN 'retrying' ELSE 'received' END, attempts = attempts - 1, lease_until = NULL,
    leased_at = CASE WHEN CAST(:after AS double precision) IS NULL THEN leased_at ELSE now() END,
    next_attempt_at = coalesce(
        now() + CAST(:after AS double precision) * interval '1 second', CASE WHEN next_attempt_at > now() THEN now() ELSE next_attempt_at END
    )
FROM json_to_recordset(CAST(:held AS json)) AS h (receipt bigint, lease bigint)
WHERE r.id = h.receipt AND r.lease = h.lease AND r.status = 'processing'
RETURNING r.id

-- name: release_strays
UPDATE webhook_receipts
SET status = CASE WHEN attempts > 1 THEN 'retrying' ELSE 'received' END, attempts = attempts - 1, lease_until = NULL,
    next_attempt_at = CASE WHEN next_attempt_at > now() THEN now() ELSE next_attempt_at END
WHERE status = 'processing' AND worker = :worker AND consumer = :consumer AND id <> ALL (CAST(CAST(:held AS text) AS bigint[]))
RETURNING id

-- name: expired
-- Also those whose begin is ahead by more than their length: the clock went back, and their worker has not extended them since.
SELECT id AS receipt, lease, attempts AS attempt, source, provider, event_id, type, object_id, occurred_at, delivery_id,
       correlation_id, is_inline, worker, tenant, consumer
FROM webhook_receipts
WHERE status = 'processing' AND id > :after
  AND (lease_until < now() OR lease_until > leased_at AND leased_at > now() + (lease_until - leased_at))
ORDER BY id LIMIT :limit

-- name: end_sessions
-- Ends the sessions of a worker without a live lease whose transactions are idle and still hold locks. They have the
-- worker's name. PostgreSQL allows a role to end its own sessions.
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.datname = current_database() AND a.usename = current_user AND a.application_name = :session
  AND a.state LIKE 'idle in transaction%' AND a.state_change < now() - interval '1 second'
  AND a.xact_start < now() - CAST(:begun_before AS double precision) * interval '1 second'
  AND NOT EXISTS (
      SELECT FROM webhook_receipts r WHERE r.status = 'processing' AND r.worker = :worker AND r.lease_until >= now()
  )

-- name: next_due
SELECT extract(epoch FROM min(due) - now())::double precision
FROM (
    SELECT min(coalesce(next_attempt_at, received_at)) AS due FROM webhook_receipts h
    WHERE consumer = :consumer AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
      AND {> not_paused} AND {> handled_here}
    UNION ALL
    SELECT min(coalesce(next_attempt_at, received_at)) FROM webhook_receipts h
    WHERE consumer = :consumer AND status IN ('received', 'retrying') AND serial_key IS NOT NULL AND unhandled_at IS NULL
      AND {> not_paused} AND {> handled_here}
) waiting

-- name: lease_one
WITH leased AS (
    UPDATE webhook_receipts
    SET status = 'processing', attempts = attempts + 1, lease = lease + 1 + floor(random() * 4294967296)::bigint, leased_at = now(), worker = :worker,
        lease_until = now() + :seconds * interval '1 second'
    WHERE id = :receipt AND is_inline AND (status = 'retrying' OR (status = 'processing' AND lease_until < now()))
    RETURNING *
)
SELECT l.id AS receipt, l.lease, l.attempts AS attempt, l.source, l.provider, l.event_id, l.type, l.object_id, l.occurred_at,
       l.received_at, l.delivery_id, l.correlation_id, l.replays, l.tenant, l.consumer, p.body, p.headers, p.object
FROM leased l LEFT JOIN webhook_payloads p ON p.receipt_id = coalesce(l.main_id, l.id) AND p.day = (l.received_at AT TIME ZONE 'UTC')::date

-- name: abandon_inline
UPDATE webhook_receipts
SET status = 'failed', next_attempt_at = NULL, failed_at = now(),
    last_error = :reason || coalesce('; the last error was: ' || last_error, '')
WHERE is_inline AND status = 'retrying' AND next_attempt_at <= now()
RETURNING id AS receipt, attempts AS attempt, source, provider, event_id, type, object_id, occurred_at, delivery_id,
          correlation_id, handler, last_error, tenant, consumer
