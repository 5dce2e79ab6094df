-- name: take_leadership
-- Never waits: a row that is locked belongs to a leader that works. If the server has waited for some seconds for the next
-- message of that leader's transaction, the leader has stalled, and its session is ended. The next try can then succeed.
-- No timeout of PostgreSQL 15 ends a session that waits between the parts of a statement. A leadership that begins in the
-- future by more than its term is taken too: the clock went back.
WITH stalled AS MATERIALIZED (
    SELECT pg_terminate_backend(a.pid)
    FROM webhook_leaders l JOIN pg_stat_activity a ON a.backend_xid = l.xmax
    WHERE l.task = CAST(:task AS text) AND (l.expires_at <= now() OR l.taken_at > now() + CAST(:seconds AS double precision) * interval '1 second') AND a.usename = current_user
      AND a.wait_event = 'ClientRead' AND a.state_change < now() - interval '5 seconds'
), expired AS MATERIALIZED (
    SELECT task FROM webhook_leaders
    WHERE task = CAST(:task AS text) AND (expires_at <= now() OR taken_at > now() + CAST(:seconds AS double precision) * interval '1 second')
      AND (SELECT count(*) FROM stalled) = 0
    FOR UPDATE SKIP LOCKED
), taken AS (
    UPDATE webhook_leaders l
    SET number = l.number + 1, leader = CAST(:leader AS text), taken_at = now(),
        expires_at = now() + CAST(:seconds AS double precision) * interval '1 second'
    FROM expired WHERE l.task = expired.task AND (l.expires_at <= now() OR l.taken_at > now() + CAST(:seconds AS double precision) * interval '1 second')
    RETURNING l.number
), first AS (
    INSERT INTO webhook_leaders (task, number, leader, taken_at, expires_at)
    SELECT CAST(:task AS text), 1, CAST(:leader AS text), now(), now() + CAST(:seconds AS double precision) * interval '1 second'
    WHERE NOT EXISTS (SELECT 1 FROM webhook_leaders WHERE task = CAST(:task AS text))
    ON CONFLICT (task) DO NOTHING
    RETURNING number
)
SELECT number FROM taken UNION ALL SELECT number FROM first

-- name: hold_leadership
-- Locks the row until the transaction ends.
UPDATE webhook_leaders
SET expires_at = greatest(expires_at, now() + CAST(:seconds AS double precision) * interval '1 second')
WHERE task = :task AND leader = :leader AND number = CAST(:number AS bigint)
RETURNING number

-- name: release_leadership
UPDATE webhook_leaders SET expires_at = now() WHERE task = :task AND leader = :leader AND number = CAST(:number AS bigint)

-- name: leaders
SELECT task, leader, number, taken_at, expires_at, expires_at > now() AS is_held FROM webhook_leaders ORDER BY task
