-- Times that were written by a clock that was ahead. `leased_at` is when `next_attempt_at` was written, or later. Each process
-- runs these statements after the clock was set back and after its start, so they may read everything that waits.

-- name: receipts_scheduled_ahead
SELECT id FROM webhook_receipts
WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NULL
  AND next_attempt_at > now() AND leased_at > now() + interval '1 second'
UNION ALL
SELECT id FROM webhook_receipts
WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NOT NULL
  AND next_attempt_at > now() AND leased_at > now() + interval '1 second'
LIMIT :limit

-- name: make_receipts_due
-- The second is for rows that another process has just corrected: its `now()` can be later than that of this transaction.
WITH ahead AS (
    SELECT id FROM webhook_receipts
    WHERE id = ANY (CAST(CAST(:ids AS text) AS bigint[])) AND status IN ('received', 'retrying')
      AND next_attempt_at > now() + interval '1 second' AND leased_at > now() + interval '1 second'
    ORDER BY id FOR UPDATE SKIP LOCKED
)
UPDATE webhook_receipts r SET next_attempt_at = now() FROM ahead WHERE r.id = ahead.id
RETURNING r.id

-- name: effects_scheduled_ahead
-- An effect without next_attempt_at was due when it was requested. Its receipt may have arrived before the clock was ahead.
SELECT id FROM webhook_effects
WHERE status IN ('waiting', 'retrying') AND coalesce(next_attempt_at, created_at) > now()
  AND CASE WHEN next_attempt_at IS NULL THEN created_at ELSE leased_at END > now() + interval '1 second'
LIMIT :limit

-- name: make_effects_due
WITH ahead AS (
    SELECT id FROM webhook_effects
    WHERE id = ANY (CAST(CAST(:ids AS text) AS bigint[])) AND status IN ('waiting', 'retrying')
      AND coalesce(next_attempt_at, created_at) > now() + interval '1 second'
      AND CASE WHEN next_attempt_at IS NULL THEN created_at ELSE leased_at END > now() + interval '1 second'
    ORDER BY id FOR UPDATE SKIP LOCKED
)
UPDATE webhook_effects e SET next_attempt_at = now() FROM ahead WHERE e.id = ahead.id
RETURNING e.id

-- name: move_pauses_back
-- A pause with an end keeps its length, and begins now.
UPDATE webhook_pauses SET paused_at = now(), ends_at = now() + (ends_at - paused_at)
WHERE ends_at IS NOT NULL AND paused_at > now() + interval '1 second'
RETURNING source

-- name: move_workers_back
-- A process that died while the clock was ahead is live for another minute.
WITH ahead AS (
    SELECT name FROM webhook_workers WHERE seen_at > now() + interval '1 second' ORDER BY name FOR UPDATE SKIP LOCKED
)
UPDATE webhook_workers w SET registered_at = least(w.registered_at, now()), seen_at = now() FROM ahead WHERE w.name = ahead.name
