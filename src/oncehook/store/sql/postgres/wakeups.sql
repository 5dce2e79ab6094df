-- name: notify
-- A commit of nothing but this need not wait for the disk: whoever misses it finds the work by looking.
SELECT set_config('synchronous_commit', 'off', true), pg_notify('oncehook', '')

-- name: backend_pid
SELECT pg_backend_pid()
