-- name: applied_migrations
SELECT number, name FROM webhook_migrations

-- name: begin_migrations
BEGIN IMMEDIATE

-- name: create_migrations
CREATE TABLE IF NOT EXISTS webhook_migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
)

-- name: record_migration
INSERT INTO webhook_migrations (number, name) VALUES ({number}, '{name}')
