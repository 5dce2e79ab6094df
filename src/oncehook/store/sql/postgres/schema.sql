-- name: applied_migrations
SELECT number, name FROM webhook_migrations

-- name: begin_migrations
BEGIN

-- name: create_migrations
CREATE TABLE IF NOT EXISTS webhook_migrations (
    number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()
)

-- name: record_migration
INSERT INTO webhook_migrations (number, name) VALUES ({number}, '{name}')

-- name: payload_partitions
SELECT inhrelid::regclass::text AS name FROM pg_inherits WHERE inhparent = 'webhook_payloads'::regclass

-- name: today
SELECT (now() AT TIME ZONE 'UTC')::date

-- name: migration_lock
-- The number spells "once".
SELECT pg_advisory_xact_lock(1869505381)

-- name: create_partition
CREATE TABLE IF NOT EXISTS {name} (LIKE webhook_payloads INCLUDING ALL)

-- name: attach_partition
ALTER TABLE webhook_payloads ATTACH PARTITION {name} FOR VALUES FROM ('{day}') TO ('{next_day}')

-- name: durability
SELECT pg_is_in_recovery() AS is_standby, current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS synchronous_commit, current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_standby_names') AS standby_names,
       (SELECT count(*) FROM pg_stat_replication WHERE state IS DISTINCT FROM 'backup') AS standbys,
       current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer
           AS connections
