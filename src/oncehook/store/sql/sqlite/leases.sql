-- name: handled_here
-- Whether this process handles the receipt `h`: by a handler or a forward, or by a projection if no process has a handler.
-- A fragment of the statements that lease.
(
    EXISTS (SELECT 1 FROM json_each(:handled) p WHERE h.source || ' ' || h.type GLOB p.value)
    OR h.source IN (SELECT value FROM json_each(:projected)) AND NOT EXISTS (
        SELECT 1 FROM webhook_live_handlers l
        WHERE l.consumer = 'main' AND l.source = h.source AND NOT l.is_projection AND (h.type GLOB l.matcher OR h.type GLOB l.matcher || '.*')
    )
)

-- name: not_paused
-- Whether the source of the receipt `h` and the consumer are not paused. A fragment.
h.source NOT IN (SELECT source FROM webhook_pauses) AND :consumer NOT IN (SELECT consumer FROM webhook_pauses)

-- name: take_lease
-- The beginning of the statements that lease. A fragment.
UPDATE webhook_receipts
SET status = 'processing', attempts = attempts + 1, lease = lease + 1 + abs(random() % 4294967296), worker = :worker,
    leased_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    lease_until = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || :seconds || ' seconds')

-- name: leased
-- The columns have the names of `Leased`. A fragment.
RETURNING id AS receipt, lease, attempts AS attempt, source, provider, event_id, type, object_id, occurred_at, received_at,
          delivery_id, correlation_id, replays, tenant, consumer,
          (SELECT body FROM webhook_payloads p WHERE p.receipt_id = coalesce(main_id, id)) AS body,
          (SELECT headers FROM webhook_payloads p WHERE p.receipt_id = coalesce(main_id, id)) AS headers,
          (SELECT object FROM webhook_payloads p WHERE p.receipt_id = coalesce(main_id, id)) AS object

-- name: lease
-- A receipt is due if it has no next_attempt_at, or if that was written in the future because the clock was set back. The second
-- is for statements that began before another one wrote it. All waiting receipts are read only if the newest one shows a clock
-- set back; `due_times.sql` is for the others.
{> take_lease}
WHERE id IN (
    SELECT id FROM webhook_receipts h
    WHERE consumer = :consumer AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
      AND coalesce(next_attempt_at, received_at) <= CASE
          WHEN (SELECT max(received_at) FROM webhook_receipts) > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
          THEN '9999' ELSE strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END
      AND (next_attempt_at IS NULL OR next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
           OR leased_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second'))
      AND coalesce(next_attempt_at, received_at) >= :floor
      AND (crashes > 0) = :rescued AND {> not_paused} AND {> handled_here}
      AND tenant = :tenant                                     --? tenant
    ORDER BY coalesce(next_attempt_at, received_at), id
    LIMIT :limit
)
{> leased}

-- name: extend
-- If the clock went back, the lease begins now: otherwise `expired` would take it for that of a dead worker.
UPDATE webhook_receipts
SET lease_until = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || :seconds || ' seconds'),
    leased_at = min(leased_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
FROM (SELECT value ->> 'receipt' AS receipt, value ->> 'lease' AS lease FROM json_each(:held)) h
WHERE id = h.receipt AND webhook_receipts.lease = h.lease AND status = 'processing'

-- name: settle
-- Names the schema `main`, because a handler's transaction may have a temporary table of the same name.
UPDATE main.webhook_receipts
SET status = g.status, outcome = g.outcome, handler = g.handler, version = g.version, last_error = g.error,
    lease_until = NULL,
    started_at = coalesce(strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || g.seconds || ' seconds'), leased_at),
    crashes = CASE WHEN g.crashed THEN crashes + 1 ELSE 0 END,
    failed_at = CASE WHEN g.status = 'failed' THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END,
    processed_at = CASE WHEN g.status = 'processed' THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END,
    leased_at = CASE WHEN g.after IS NULL THEN leased_at ELSE strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END,
    next_attempt_at = CASE WHEN g.after IS NOT NULL
                           THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || g.after || ' seconds') END
FROM (
    SELECT value ->> 'receipt' AS receipt, value ->> 'lease' AS lease, value ->> 'status' AS status,
           value ->> 'outcome' AS outcome, value ->> 'after' AS after, value ->> 'error' AS error,
           value ->> 'handler' AS handler, value ->> 'version' AS version, value ->> 'seconds' AS seconds,
           value ->> 'crashed' AS crashed
    FROM json_each(:input)
) g
WHERE id = g.receipt AND webhook_receipts.lease = g.lease AND webhook_receipts.status = 'processing'
RETURNING id

-- name: settle_attempts
INSERT INTO main.webhook_past_attempts
    (receipt_id, number, started_at, ended_at, outcome, error, traceback, handler, version, worker)
SELECT r.id, r.attempts, r.started_at, coalesce(r.failed_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')), r.outcome, r.last_error,
       value ->> 'traceback', r.handler, r.version, r.worker
FROM json_each(:input) JOIN main.webhook_receipts r ON r.id = value ->> 'receipt'
WHERE r.id IN (SELECT value FROM json_each(:settled)) AND r.status <> 'processed'

-- name: release
-- A receipt that was leased was due. If the clock went back since, it still is.
UPDATE webhook_receipts
SET status = CASE WHEN attempts > 1 OR is_inline THEN 'retrying' ELSE 'received' END, attempts = attempts - 1, lease_until = NULL,
    leased_at = CASE WHEN :after IS NULL THEN leased_at ELSE strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END,
    next_attempt_at = coalesce(strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || :after || ' seconds'), min(next_attempt_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')))
FROM (SELECT value ->> 'receipt' AS receipt, value ->> 'lease' AS lease FROM json_each(:held)) h
WHERE id = h.receipt AND webhook_receipts.lease = h.lease AND status = 'processing'
RETURNING id

-- name: release_strays
UPDATE webhook_receipts
SET status = CASE WHEN attempts > 1 THEN 'retrying' ELSE 'received' END, attempts = attempts - 1, lease_until = NULL,
    next_attempt_at = min(next_attempt_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
WHERE status = 'processing' AND worker = :worker AND consumer = :consumer AND id NOT IN (SELECT value FROM json_each(:held))
RETURNING id

-- name: expired
-- Also those whose begin is ahead by more than their length: the clock went back, and their worker has not extended them since.
SELECT id AS receipt, lease, attempts AS attempt, source, provider, event_id, type, object_id, occurred_at, delivery_id,
       correlation_id, is_inline, worker, tenant, consumer
FROM webhook_receipts
WHERE status = 'processing' AND id > :after
  AND (lease_until < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
       OR lease_until > leased_at AND 2 * julianday(leased_at) > julianday(lease_until) + julianday('now'))
ORDER BY id LIMIT :limit

-- name: next_due
SELECT (julianday(min(due)) - julianday('now')) * 86400
FROM (
    SELECT min(coalesce(next_attempt_at, received_at)) AS due FROM webhook_receipts h
    WHERE consumer = :consumer AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
      AND {> not_paused} AND {> handled_here}
    UNION ALL
    SELECT min(coalesce(next_attempt_at, received_at)) FROM webhook_receipts h
    WHERE consumer = :consumer AND status IN ('received', 'retrying') AND serial_key IS NOT NULL AND unhandled_at IS NULL
      AND {> not_paused} AND {> handled_here}
)

-- name: lease_one
UPDATE webhook_receipts
SET status = 'processing', attempts = attempts + 1, lease = lease + 1 + abs(random() % 4294967296), worker = :worker,
    leased_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    lease_until = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || :seconds || ' seconds')
WHERE id = :receipt AND is_inline
  AND (status = 'retrying' OR (status = 'processing' AND lease_until < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')))
RETURNING id AS receipt, lease, attempts AS attempt, source, provider, event_id, type, object_id, occurred_at, received_at,
          delivery_id, correlation_id, replays, tenant, consumer,
          (SELECT body FROM webhook_payloads p WHERE p.receipt_id = coalesce(main_id, id)) AS body,
          (SELECT headers FROM webhook_payloads p WHERE p.receipt_id = coalesce(main_id, id)) AS headers,
          (SELECT object FROM webhook_payloads p WHERE p.receipt_id = coalesce(main_id, id)) AS object

-- name: abandon_inline
UPDATE webhook_receipts
SET status = 'failed', next_attempt_at = NULL, failed_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    last_error = :reason || coalesce('; the last error was: ' || last_error, '')
WHERE is_inline AND status = 'retrying' AND next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
RETURNING id AS receipt, attempts AS attempt, source, provider, event_id, type, object_id, occurred_at, delivery_id,
          correlation_id, handler, last_error, tenant, consumer
