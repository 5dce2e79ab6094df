-- name: notify
-- This commit need not wait for the disk: a worker that misses the notification finds the event at its next poll.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('oncehook', '')

-- name: backend_pid
SELECT pg_backend_pid()
