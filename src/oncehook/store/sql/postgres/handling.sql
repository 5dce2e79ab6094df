-- name: begin_handling
-- The setting ends with the transaction. It shows whether the handler has replaced the transaction by another one.
BEGIN; SET LOCAL oncehook.transaction = 'open'

-- name: guard_transaction
-- The same for a transaction that the user's own session began.
SET LOCAL oncehook.transaction = 'open'

-- name: unlock_prepared_session
-- Returns no row if a DEALLOCATE ALL has removed the driver's prepared statement that began the transaction.
SELECT pg_advisory_unlock_all() FROM pg_prepared_statement() s WHERE NOT s.from_sql AND s.statement = {guard}

-- name: session_state
-- The state of a connection of the user's pool before its first handler: the session's user and role, if changed, and the
-- changed settings. The last column is whether it has other state, which cleaning would remove and no setting restores.
SELECT (SELECT nullif(session_user, a.usename)::text FROM pg_stat_activity a WHERE a.pid = pg_backend_pid()),
       nullif(current_setting('role'), 'none'),
       (SELECT coalesce(json_object_agg(s.name, s.setting), '{}')::text FROM pg_settings s
        WHERE s.source = 'session' AND s.context IN ('user', 'superuser')
          AND NOT starts_with(s.name, 'transaction_') AND NOT starts_with(s.name, 'oncehook.')),
       EXISTS (SELECT FROM pg_prepared_statements WHERE from_sql) OR EXISTS (SELECT FROM pg_listening_channels())
           OR EXISTS (SELECT FROM pg_class WHERE relnamespace = pg_my_temp_schema())
           OR EXISTS (SELECT FROM pg_cursors WHERE is_holdable)
           OR EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())

-- name: before_reset
-- Deferred triggers run first, with the handler's settings and role. The next statements reset everything that could keep
-- webhook_finish from running, and CLOSE ALL, which PL/pgSQL lacks. The procedure resets the rest. RESET ROLE comes after
-- RESET SESSION AUTHORIZATION, which drops a role that the URL or ALTER ROLE had set.
SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; {authorization} RESET ROLE; RESET statement_timeout; RESET search_path

-- name: before_finish
-- The same for a connection of the user's pool, whose settings are restored before webhook_finish runs. RESET ALL follows in
-- after_finish, because it would reset the setting that webhook_finish checks.
SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ROLE; RESET statement_timeout;
RESET lock_timeout; RESET search_path; DISCARD TEMP

-- name: finish
-- Settles a receipt as processed in its handler's transaction. Raises OH001 if the lease was lost, and OH002 if this is not
-- the transaction that was begun for the handler. Both prevent the COMMIT.
CALL webhook_finish({receipt}, {lease}, {handler}, {version}, {seconds}, {resets}, {guarded})

-- name: finish_others
-- Settles the other receipts of a batch.
CALL webhook_finish_others({receipts}, {leases}, {handler}, {version}, {seconds})

-- name: is_committed
-- Returns a row if the message that settles was committed. Used after an error at an unknown position of the message.
SELECT FROM webhook_receipts WHERE id = {receipt} AND lease = {lease} AND status = 'processed'

-- name: after_finish
RESET ALL; UNLISTEN *; DISCARD SEQUENCES

-- name: unlock_session
-- Only after the COMMIT: a session that waits for an advisory lock expects to see the writes made under it.
SELECT pg_advisory_unlock_all()

-- name: unlock_guarded_session
EXECUTE oncehook

-- name: clean_session
-- After a ROLLBACK: removes all that DISCARD ALL removes, except prepared statements and advisory locks.
RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES

-- name: deallocate_statements
SELECT webhook_deallocate({guarded})

-- name: guard_session
-- Saves planning the unlock for every event. If a handler runs DEALLOCATE ALL, the next EXECUTE fails, which shows that the
-- driver's statements are gone too and the connection must be closed.
PREPARE oncehook AS SELECT pg_advisory_unlock_all()

-- name: session_user
SELECT session_user

-- name: same_database
-- Identifies the database, the server, the table and the transaction. If the transaction of two runs differs, the session
-- is in AUTOCOMMIT mode.
SELECT current_database()::text, extract(epoch FROM pg_postmaster_start_time())::text,
       to_regclass('webhook_receipts')::oid::bigint, txid_current()
