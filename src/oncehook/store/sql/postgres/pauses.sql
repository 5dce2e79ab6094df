-- name: pause
INSERT INTO webhook_pauses (source, consumer, actor, reason, ends_at)
VALUES (:source, :consumer, :actor, :reason, now() + make_interval(secs => CAST(:seconds AS double precision)))
ON CONFLICT (source, consumer) DO UPDATE
SET paused_at = now(), actor = excluded.actor, reason = excluded.reason, ends_at = excluded.ends_at
WHERE webhook_pauses.ends_at <= now()
RETURNING source, consumer

-- name: resume
DELETE FROM webhook_pauses WHERE source = :source AND consumer = :consumer
RETURNING source, consumer

-- name: resume_by_actor
DELETE FROM webhook_pauses WHERE source = :source AND consumer = :consumer AND actor = :actor
RETURNING source, consumer

-- name: pauses
SELECT source, consumer, paused_at, actor, reason, ends_at FROM webhook_pauses
WHERE ends_at IS NULL OR ends_at > now()
ORDER BY source, consumer

-- name: pause_states
SELECT source, consumer, coalesce(ends_at <= now(), false) AS is_over FROM webhook_pauses

-- name: end_pauses
DELETE FROM webhook_pauses WHERE ends_at <= now()
RETURNING source, consumer, ends_at

-- name: due_window
-- For the next window of due receipts, which begins at `after`: the first receipt that this process may lease, the end of the
-- window and its size. `lately` is one second ago: a transaction that commits late may add receipts that were due before.
SELECT min(due) FILTER (WHERE {> not_paused} AND {> handled_here}
                              AND tenant = :tenant             --? tenant
       ) AS first,
       max(due) AS last, count(*) AS number, now() - interval '1 second' AS lately
FROM (
    SELECT source, tenant, type, coalesce(next_attempt_at, received_at) AS due FROM webhook_receipts
    WHERE consumer = :consumer AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
      AND coalesce(next_attempt_at, received_at) <= now()
      AND coalesce(next_attempt_at, received_at) >= CAST(CAST(:after AS text) AS timestamptz)
    ORDER BY coalesce(next_attempt_at, received_at), id
    LIMIT :size
) h
