-- name: record_effects
INSERT INTO webhook_effects (scope, key, kind, target, args, source, receipt_id, status, done_at)
SELECT value ->> 'scope', value ->> 'key', value ->> 'kind', value ->> 'target', value ->> 'args', value ->> 'source',
       value ->> 'receipt', CASE WHEN value ->> 'kind' = 'once' THEN 'done' ELSE 'waiting' END,
       CASE WHEN value ->> 'kind' = 'once' THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END
FROM json_each(:input) WHERE true
ON CONFLICT (scope, key) DO NOTHING
RETURNING scope, key

-- name: existing_effects
SELECT e.scope, e.key, e.status, e.receipt_id
FROM json_each(:input) g JOIN webhook_effects e ON e.scope = g.value ->> 'scope' AND e.key = g.value ->> 'key'

-- name: note_noops
INSERT INTO webhook_noops (receipt_id, source, reason, scope, key)
SELECT value ->> 'receipt', value ->> 'source', value ->> 'reason', value ->> 'scope', value ->> 'key' FROM json_each(:input)
RETURNING id

-- name: advance
INSERT INTO webhook_entities AS e (scope, kind, id, state, at, version, is_terminal, event_id, receipt_id)
SELECT g ->> 'scope', g ->> 'kind', g ->> 'id', g ->> 'state', g ->> 'at', g ->> 'version', g ->> 'is_terminal',
       g ->> 'event_id', g ->> 'receipt'
FROM (SELECT :input AS g) WHERE true
ON CONFLICT (scope, kind, id) DO UPDATE
SET state = excluded.state, at = excluded.at, version = excluded.version, is_terminal = excluded.is_terminal,
    event_id = excluded.event_id, receipt_id = excluded.receipt_id,
    updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE (excluded.is_terminal, coalesce(excluded.at, ''), coalesce(excluded.version, -9223372036854775808), excluded.event_id)
   >= (e.is_terminal, coalesce(e.at, ''), coalesce(e.version, -9223372036854775808), e.event_id)
RETURNING id

-- name: entity
SELECT e.is_terminal, e.at, e.version, e.event_id, e.state
FROM (SELECT :input AS g) JOIN webhook_entities e
    ON e.scope = g ->> 'scope' AND e.kind = g ->> 'kind' AND e.id = g ->> 'id'

-- name: entities_of
-- There are few kinds and many ids: steps from kind to kind by the primary key.
WITH RECURSIVE kinds AS (
    SELECT min(kind) AS kind FROM webhook_entities WHERE scope = :input ->> 'scope'
    UNION ALL
    SELECT (SELECT min(e.kind) FROM webhook_entities e WHERE e.scope = :input ->> 'scope' AND e.kind > kinds.kind)
    FROM kinds WHERE kinds.kind IS NOT NULL
)
SELECT e.kind, e.id, e.state, e.at, e.version, e.is_terminal, e.event_id, e.receipt_id AS receipt, e.updated_at
FROM kinds JOIN webhook_entities e ON e.scope = :input ->> 'scope' AND e.kind = kinds.kind AND e.id = :input ->> 'id'
ORDER BY e.kind
LIMIT 100

-- name: lease_effects
UPDATE webhook_effects
SET status = 'performing', attempts = attempts + 1, lease = lease + 1 + abs(random() % 4294967296), worker = :worker,
    leased_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    lease_until = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || (
        SELECT max(t.value ->> 'seconds') FROM json_each(:targets) t
        WHERE t.value ->> 'kind' = webhook_effects.kind
          AND coalesce(t.value ->> 'target', webhook_effects.target) = webhook_effects.target
    ) || ' seconds')
WHERE id IN (
    SELECT e.id FROM webhook_effects e
    WHERE e.status IN ('waiting', 'retrying')
      AND coalesce(e.next_attempt_at, e.created_at) <= CASE  -- as for receipts
          WHEN (SELECT max(received_at) FROM webhook_receipts) > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
          THEN '9999' ELSE strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END
      AND (e.next_attempt_at IS NULL OR e.next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
           OR e.leased_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second'))
      AND (e.crashes > 0) = :rescued
      AND EXISTS (SELECT 1 FROM json_each(:targets) t
                  WHERE t.value ->> 'kind' = e.kind AND coalesce(t.value ->> 'target', e.target) = e.target)
    ORDER BY coalesce(e.next_attempt_at, e.created_at), e.id
    LIMIT :limit
)
RETURNING id, lease, attempts AS attempt, scope, key, kind, target, args, source, receipt_id AS receipt, replays

-- name: settle_effects
UPDATE webhook_effects
SET status = g.status, lease_until = NULL,
    last_error = CASE WHEN g.uncharged THEN last_error ELSE g.error END,
    attempts = CASE WHEN g.uncharged THEN attempts - 1 ELSE attempts END,
    crashes = CASE WHEN g.uncharged THEN crashes WHEN g.crashed THEN crashes + 1 ELSE 0 END,
    done_at = CASE WHEN g.status = 'done' THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END,
    leased_at = CASE WHEN g.after IS NULL THEN leased_at ELSE strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END,
    next_attempt_at = CASE WHEN g.after IS NOT NULL
                           THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || g.after || ' seconds') END
FROM (
    SELECT value ->> 'id' AS effect, value ->> 'lease' AS lease, value ->> 'status' AS status, value ->> 'after' AS after,
           value ->> 'error' AS error, value ->> 'crashed' AS crashed, value ->> 'uncharged' AS uncharged
    FROM json_each(:input)
) g
WHERE id = g.effect AND webhook_effects.lease = g.lease AND webhook_effects.status = 'performing'
RETURNING id

-- name: expired_effects
-- Also those whose begin is ahead by more than their length: the clock went back, and their worker has not extended them since.
SELECT id, lease, attempts AS attempt, kind, target, key FROM webhook_effects
WHERE status = 'performing' AND id > :after
  AND (lease_until < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
       OR lease_until > leased_at AND 2 * julianday(leased_at) > julianday(lease_until) + julianday('now'))
ORDER BY id LIMIT :limit

-- name: find_effects
SELECT e.id, e.scope, e.key, e.kind, e.target, e.status, e.attempts, e.created_at, e.next_attempt_at, e.done_at, e.last_error,
       e.source, e.receipt_id AS receipt, e.replays, e.worker, e.args
FROM webhook_effects e
WHERE e.id > 0
  AND e.id < :before                                           --? before
  AND e.id >= :down_to                                          --? down_to
  AND e.id IN (SELECT value FROM json_each(:ids))              --? ids
  AND e.receipt_id = :receipt                                  --? receipt
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
       count(*) FILTER (WHERE crashes > 0 AND coalesce(next_attempt_at, created_at)
                              <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')) AS crashed,
       (julianday('now') - julianday(min(coalesce(next_attempt_at, created_at)))) * 86400 AS lag
FROM webhook_effects WHERE status IN ('waiting', 'retrying') GROUP BY kind, target ORDER BY kind, target

-- name: replay_effects
UPDATE webhook_effects
SET status = 'waiting', attempts = 0, crashes = 0, replays = replays + 1, next_attempt_at = NULL, last_error = NULL
WHERE id IN (SELECT value FROM json_each(:ids)) AND status = 'failed' AND args IS NOT NULL
RETURNING id

-- name: clear_effects
UPDATE webhook_effects SET args = NULL
WHERE id IN (
    SELECT e.id FROM webhook_effects e JOIN json_each(:before) h ON h.value ->> 'source' = e.source
    WHERE e.status = 'done' AND e.args IS NOT NULL AND e.done_at < h.value ->> 'before'
    ORDER BY e.done_at LIMIT :limit
)
RETURNING id

-- name: prune_effects
DELETE FROM webhook_effects
WHERE id IN (
    SELECT e.id FROM webhook_effects e
    WHERE e.status = 'done' AND e.done_at < :before AND e.created_at < :before
    ORDER BY e.id LIMIT :limit
)
RETURNING id

-- name: prune_noops
DELETE FROM webhook_noops WHERE receipt_id IN (SELECT value FROM json_each(:receipts))

-- name: erase_in_effects
UPDATE webhook_effects
SET args = NULL, last_error = CASE WHEN last_error IS NOT NULL THEN '(erased)' END
WHERE receipt_id IN (SELECT value FROM json_each(:receipts)) AND (args IS NOT NULL OR last_error IS NOT NULL)
RETURNING receipt_id
