-- name: primary_position
-- The name of the database is the same on its standbys: the cluster's identifier and the database's oid.
SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || d.oid AS database,
       pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint AS position, pg_is_in_recovery() AS is_standby
FROM pg_database d WHERE d.datname = current_database()

-- name: standby_position
SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || d.oid AS database,
       pg_wal_lsn_diff(pg_last_wal_replay_lsn(), '0/0')::bigint AS position, pg_is_in_recovery() AS is_standby
FROM pg_database d WHERE d.datname = current_database()
