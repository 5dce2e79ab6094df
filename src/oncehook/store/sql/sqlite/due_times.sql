-- Times that were written by a clock that was ahead. `leased_at` is when `next_attempt_at` was written, or later. Each process
-- runs these statements after the clock was set back and after its start, so they may read everything that waits.

-- name: receipts_scheduled_ahead
SELECT id FROM webhook_receipts
WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NULL
  AND next_attempt_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  AND leased_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
UNION ALL
SELECT id FROM webhook_receipts
WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NOT NULL
  AND next_attempt_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  AND leased_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
LIMIT :limit

-- name: make_receipts_due
UPDATE webhook_receipts SET next_attempt_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('received', 'retrying')
  AND next_attempt_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  AND leased_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
RETURNING id

-- name: effects_scheduled_ahead
-- An effect without next_attempt_at was due when it was requested. Its receipt may have arrived before the clock was ahead.
SELECT id FROM webhook_effects
WHERE status IN ('waiting', 'retrying') AND coalesce(next_attempt_at, created_at) > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  AND CASE WHEN next_attempt_at IS NULL THEN created_at ELSE leased_at END > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
LIMIT :limit

-- name: make_effects_due
UPDATE webhook_effects SET next_attempt_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE id IN (SELECT value FROM json_each(:ids)) AND status IN ('waiting', 'retrying')
  AND coalesce(next_attempt_at, created_at) > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
  AND CASE WHEN next_attempt_at IS NULL THEN created_at ELSE leased_at END > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
RETURNING id

-- name: move_pauses_back
-- A pause with an end keeps its length, and begins now.
UPDATE webhook_pauses
SET paused_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    ends_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now',
                       '+' || max(0.0, (julianday(ends_at) - julianday(paused_at)) * 86400) || ' seconds')
WHERE ends_at IS NOT NULL AND paused_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
RETURNING source

-- name: move_workers_back
-- A process that died while the clock was ahead is live for another minute.
UPDATE webhook_workers
SET registered_at = min(registered_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')), seen_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE seen_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
