-- name: take_leadership
-- Also one that begins in the future by more than its term: the clock went back.
INSERT INTO webhook_leaders (task, number, leader, taken_at, expires_at)
VALUES (:task, 1, :leader, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || :seconds || ' seconds'))
ON CONFLICT (task) DO UPDATE
SET number = number + 1, leader = excluded.leader, taken_at = excluded.taken_at, expires_at = excluded.expires_at
WHERE expires_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
   OR taken_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || :seconds || ' seconds')
RETURNING number

-- name: hold_leadership
-- The transaction has the only write lock of the database.
UPDATE webhook_leaders
SET expires_at = max(expires_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || :seconds || ' seconds'))
WHERE task = :task AND leader = :leader AND number = :number
RETURNING number

-- name: release_leadership
UPDATE webhook_leaders SET expires_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE task = :task AND leader = :leader AND number = :number

-- name: leaders
SELECT task, leader, number, taken_at, expires_at, expires_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') AS is_held
FROM webhook_leaders ORDER BY task
