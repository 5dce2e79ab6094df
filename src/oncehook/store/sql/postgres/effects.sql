-- name: record_effects
-- A transaction that inserts a key of a running transaction waits for its end. The order of keys prevents deadlocks.
INSERT INTO webhook_effects (scope, key, kind, target, args, source, receipt_id, status, done_at)
SELECT scope, key, kind, target, args, source, receipt, CASE WHEN kind = 'once' THEN 'done' ELSE 'waiting' END,
       CASE WHEN kind = 'once' THEN now() END
FROM json_to_recordset(CAST(:input AS json)) AS g (
    scope text, key text, kind text, target text, args text, source text, receipt bigint
)
ORDER BY scope COLLATE "C", key COLLATE "C"
ON CONFLICT (scope, key) DO NOTHING
RETURNING scope, key

-- name: existing_effects
SELECT e.scope, e.key, e.status, e.receipt_id
FROM webhook_effects e
JOIN json_to_recordset(CAST(:input AS json)) AS g (scope text, key text) ON g.scope = e.scope AND g.key = e.key

-- name: note_noops
INSERT INTO webhook_noops (receipt_id, source, reason, scope, key)
SELECT receipt, source, reason, scope, key
FROM json_to_recordset(CAST(:input AS json)) AS g (receipt bigint, source text, reason text, scope text, key text)
RETURNING id

-- name: advance
INSERT INTO webhook_entities AS e (scope, kind, id, state, at, version, is_terminal, event_id, receipt_id)
SELECT scope, kind, id, state, at, version, is_terminal, event_id, receipt
FROM json_to_record(CAST(:input AS json)) AS g (
    scope text, kind text, id text, state text, at timestamptz, version bigint, is_terminal boolean, event_id text, receipt bigint
)
ON CONFLICT (scope, kind, id) DO UPDATE
SET state = excluded.state, at = excluded.at, version = excluded.version, is_terminal = excluded.is_terminal,
    event_id = excluded.event_id, receipt_id = excluded.receipt_id, updated_at = now()
WHERE (excluded.is_terminal, coalesce(excluded.at, '-infinity'),
       coalesce(excluded.version, CAST('-9223372036854775808' AS bigint)), excluded.event_id)
   >= (e.is_terminal, coalesce(e.at, '-infinity'), coalesce(e.version, CAST('-9223372036854775808' AS bigint)), e.event_id)
RETURNING e.id

-- name: entity
SELECT e.is_terminal, e.at, e.version, e.event_id, e.state
FROM webhook_entities e
JOIN json_to_record(CAST(:input AS json)) AS g (scope text, kind text, id text)
    ON g.scope = e.scope AND g.kind = e.kind AND g.id = e.id

-- name: entities_of
-- There are few kinds and many ids: steps from kind to kind by the primary key.
WITH RECURSIVE kinds AS (
    SELECT min(kind) AS kind FROM webhook_entities WHERE scope = CAST(:input AS json) ->> 'scope'
    UNION ALL
    SELECT (SELECT min(e.kind) FROM webhook_entities e WHERE e.scope = CAST(:input AS json) ->> 'scope' AND e.kind > kinds.kind)
    FROM kinds WHERE kinds.kind IS NOT NULL
)
SELECT e.kind, e.id, e.state, e.at, e.version, e.is_terminal, e.event_id, e.receipt_id AS receipt, e.updated_at
FROM kinds CROSS JOIN LATERAL (
    SELECT * FROM webhook_entities match
    WHERE match.scope = CAST(:input AS json) ->> 'scope' AND match.kind = kinds.kind AND match.id = CAST(:input AS json) ->> 'id'
    LIMIT 1  -- unique by the key; this makes the planner use the key
) AS e
ORDER BY e.kind
LIMIT 100

-- name: lease_effects
WITH targets AS (
    SELECT * FROM json_to_recordset(CAST(:targets AS json)) AS t (kind text, target text, seconds double precision)
), due AS (
    SELECT e.id, (SELECT max(t.seconds) FROM targets t WHERE t.kind = e.kind AND coalesce(t.target, e.target) = e.target) AS seconds
    FROM webhook_effects e
    WHERE e.status IN ('waiting', 'retrying')
      AND coalesce(e.next_attempt_at, e.created_at) <= CASE  -- as for receipts
          WHEN (SELECT max(received_at) FROM webhook_receipts) > now() + interval '1 second' THEN 'infinity' ELSE now() END
      AND (e.next_attempt_at IS NULL OR e.next_attempt_at <= now() OR e.leased_at > now() + interval '1 second')
      AND (e.crashes > 0) = :rescued
      AND EXISTS (SELECT 1 FROM targets t WHERE t.kind = e.kind AND coalesce(t.target, e.target) = e.target)
    ORDER BY coalesce(e.next_attempt_at, e.created_at), e.id
    LIMIT :limit FOR UPDATE OF e SKIP LOCKED
)
UPDATE webhook_effects e
SET status = 'performing', attempts = attempts + 1, lease = lease + 1 + floor(random() * 4294967296)::bigint, leased_at = now(), worker = :worker,
    lease_until = now() + due.seconds * interval '1 second'
FROM due WHERE e.id = due.id
RETURNING e.id, e.lease, e.attempts AS attempt, e.scope, e.key, e.kind, e.target, e.args, e.source, e.receipt_id AS receipt,
          e.replays

-- name: settle_effects
WITH input AS (
    SELECT * FROM json_to_recordset(CAST(:input AS json)) AS g (
        id bigint, lease bigint, status text, after double precision, error text, crashed boolean, uncharged boolean
    )
), held AS (
    SELECT e.id FROM webhook_effects e JOIN input g ON g.id = e.id
    WHERE e.lease = g.lease AND e.status = 'performing'
    ORDER BY e.id FOR UPDATE OF e
)
UPDATE webhook_effects e
SET status = g.status, lease_until = NULL,
    last_error = CASE WHEN g.uncharged THEN e.last_error ELSE g.error END,
    attempts = CASE WHEN g.uncharged THEN e.attempts - 1 ELSE e.attempts END,
    crashes = CASE WHEN g.uncharged THEN e.crashes WHEN g.crashed THEN e.crashes + 1 ELSE 0 END,
    done_at = CASE WHEN g.status = 'done' THEN now() END,
    leased_at = CASE WHEN g.after IS NULL THEN e.leased_at ELSE now() END,
    next_attempt_at = CASE WHEN g.after IS NOT NULL THEN now() + g.after * interval '1 second' END
FROM input g JOIN held ON held.id = g.id
WHERE e.id = g.id AND e.lease = g.lease AND e.status = 'performing'
RETURNING e.id

-- name: expired_effects
-- Also those whose begin is ahead by more than their length: the clock went back, and their worker has not extended them since.
SELECT id, lease, attempts AS attempt, kind, target, key FROM webhook_effects
WHERE status = 'performing' AND id > :after
  AND (lease_until < now() OR lease_until > leased_at AND leased_at > now() + (lease_until - leased_at))
ORDER BY id LIMIT :limit

-- name: find_effects
SELECT e.id, e.scope, e.key, e.kind, e.target, e.status, e.attempts, e.created_at, e.next_attempt_at, e.done_at, e.last_error,
       e.source, e.receipt_id AS receipt, e.replays, e.worker, e.args
FROM webhook_effects e
WHERE e.id > 0
  AND e.id < CAST(:before AS bigint)                           --? before
  AND e.id >= CAST(:down_to AS bigint)                         --? down_to
  AND e.id = ANY(CAST(:ids AS text)::bigint[])                       --? ids
  AND e.receipt_id = CAST(:receipt AS bigint)                  --? receipt
  AND e.status = :status                                       --? status
  AND e.source = :source                                       --? source
  AND e.key = :key                                             --? key
  AND e.target = :target                                       --? target
ORDER BY e.id DESC
LIMIT :limit

-- name: receipt_noops
SELECT at, reason, scope, key FROM webhook_noops WHERE receipt_id = :receipt ORDER BY id

-- name: effect_counts
SELECT status, count(*) AS effects FROM webhook_effects WHERE kind <> 'once' GROUP BY status ORDER BY status

-- name: bounded_effect_counts
SELECT 'waiting' AS status, count(*) AS effects FROM (
    SELECT 1 FROM webhook_effects WHERE status = 'waiting' AND kind <> 'once' LIMIT :most
) AS waiting
UNION ALL
SELECT 'performing' AS status, count(*) AS effects FROM (
    SELECT 1 FROM webhook_effects WHERE status = 'performing' AND kind <> 'once' LIMIT :most
) AS performing
UNION ALL
SELECT 'retrying' AS status, count(*) AS effects FROM (
    SELECT 1 FROM webhook_effects WHERE status = 'retrying' AND kind <> 'once' LIMIT :most
) AS retrying
UNION ALL
SELECT 'done' AS status, count(*) AS effects FROM (
    SELECT 1 FROM webhook_effects WHERE status = 'done' AND kind <> 'once' LIMIT :most
) AS done
UNION ALL
SELECT 'failed' AS status, count(*) AS effects FROM (
    SELECT 1 FROM webhook_effects WHERE status = 'failed' AND kind <> 'once' LIMIT :most
) AS failed

-- name: failed_effect_totals
SELECT count(*) FILTER (WHERE args IS NOT NULL) AS replayable, count(*) FILTER (WHERE args IS NULL) AS erased
FROM webhook_effects
WHERE status = 'failed'
  AND source = :source                                         --? source
  AND target = :target                                         --? target

-- name: noop_counts
SELECT source, reason, count(*) AS noops FROM webhook_noops GROUP BY source, reason ORDER BY source, reason

-- name: waiting_effects
SELECT kind, target, count(*) AS effects,
       count(*) FILTER (WHERE crashes > 0 AND coalesce(next_attempt_at, created_at) <= now()) AS crashed,
       extract(epoch FROM now() - min(coalesce(next_attempt_at, created_at)))::double precision AS lag
FROM webhook_effects WHERE status IN ('waiting', 'retrying') GROUP BY kind, target ORDER BY kind, target

-- name: replay_effects
UPDATE webhook_effects
SET status = 'waiting', attempts = 0, crashes = 0, replays = replays + 1, next_attempt_at = NULL, last_error = NULL
WHERE id IN (
    SELECT id FROM webhook_effects
    WHERE id = ANY(CAST(:ids AS text)::bigint[]) AND status = 'failed' AND args IS NOT NULL
    ORDER BY id FOR UPDATE SKIP LOCKED
) AND status = 'failed'
RETURNING id

-- name: clear_effects
UPDATE webhook_effects SET args = NULL
WHERE id IN (
    SELECT e.id FROM webhook_effects e
    JOIN json_to_recordset(CAST(:before AS json)) AS h (source text, before timestamptz) ON h.source = e.source
    WHERE e.status = 'done' AND e.args IS NOT NULL AND e.done_at < h.before
    ORDER BY e.done_at LIMIT :limit
) AND status = 'done'
RETURNING id

-- name: prune_effects
DELETE FROM webhook_effects
WHERE id IN (
    SELECT e.id FROM webhook_effects e
    WHERE e.status = 'done' AND e.done_at < CAST(:before AS timestamptz) AND e.created_at < CAST(:before AS timestamptz)
    ORDER BY e.id LIMIT :limit
) AND status = 'done'
RETURNING id

-- name: prune_noops
DELETE FROM webhook_noops WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[])

-- name: erase_in_effects
UPDATE webhook_effects
SET args = NULL, last_error = CASE WHEN last_error IS NOT NULL THEN '(erased)' END
WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[]) AND (args IS NOT NULL OR last_error IS NOT NULL)
RETURNING receipt_id
