-- name: begin_handling
-- The setting ends with the transaction, however that ends: it tells whether the handler replaced it by another one.
BEGIN; SET LOCAL oncehook.transaction = 'open'

-- name: guard_transaction
-- The same for a transaction that somebody else began.
SET LOCAL oncehook.transaction = 'open'

-- name: unlock_prepared_session
-- Without a row where the driver's own prepared statement of what began the transaction is gone, by DEALLOCATE ALL.
SELECT pg_advisory_unlock_all() FROM pg_prepared_statement() s WHERE NOT s.from_sql AND s.statement = {guard}

-- name: session_state
-- What a connection of the user's pool had before its first handler: the role, if it is not the one that logged in, and
-- settings; and whether it has anything else that cleaning would take away and no setting brings back.
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
-- Deferred triggers run first, with the handler's own settings and role. The rest is what would keep webhook_finish from being
-- found or run, and CLOSE ALL, which PL/pgSQL lacks; the procedure resets everything else. RESET ROLE comes after RESET SESSION
-- AUTHORIZATION, which forgets a role that the address or ALTER ROLE had set.
SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; {authorization} RESET ROLE; RESET statement_timeout; RESET search_path

-- name: before_finish
-- The same for a connection of the user's pool, where settings of the user's are restored before webhook_finish runs. RESET ALL
-- follows in after_finish: it would also reset the setting that webhook_finish checks.
SET CONSTRAINTS ALL IMMEDIATE; CLOSE ALL; RESET SESSION AUTHORIZATION; RESET ROLE; RESET statement_timeout;
RESET lock_timeout; RESET search_path; DISCARD TEMP

-- name: finish
-- Settles a receipt as processed in its handler's transaction. Two errors prevent the COMMIT: OH001 if the lease was lost, OH002
-- if this is not the transaction that was begun for the handler.
CALL webhook_finish({receipt}, {lease}, {handler}, {version}, {seconds}, {resets}, {guarded})

-- name: finish_others
-- The other receipts of a batch.
CALL webhook_finish_others({receipts}, {leases}, {handler}, {version}, {seconds})

-- name: is_committed
-- Whether the message that settles came past its COMMIT, for an error whose position in the message is not known.
SELECT FROM webhook_receipts WHERE id = {receipt} AND lease = {lease} AND status = 'processed'

-- name: after_finish
RESET ALL; UNLISTEN *; DISCARD SEQUENCES

-- name: unlock_session
-- Only after the COMMIT: whoever waits for an advisory lock expects to see what was done under it.
SELECT pg_advisory_unlock_all()

-- name: unlock_guarded_session
EXECUTE oncehook

-- name: clean_session
-- After a ROLLBACK: everything that DISCARD ALL removes, except prepared statements and advisory locks.
RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; CLOSE ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES

-- name: deallocate_statements
SELECT webhook_deallocate({guarded})

-- name: guard_session
-- Saves planning the unlock for every event. DEALLOCATE ALL drops it together with the driver's statements: the error at the
-- next EXECUTE tells that the connection must be closed.
PREPARE oncehook AS SELECT pg_advisory_unlock_all()

-- name: session_user
SELECT session_user

-- name: same_database
-- Which database, which server, which table; and which transaction, so that asking twice shows an AUTOCOMMIT.
SELECT current_database()::text, extract(epoch FROM pg_postmaster_start_time())::text,
       to_regclass('webhook_receipts')::oid::bigint, txid_current()
