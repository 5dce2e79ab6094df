-- What ends a handler's transaction also checks its session: whether the transaction is still the one that was begun for
-- the handler, and which prepared statements the handler left. Older workers go on with webhook_mark.

CREATE FUNCTION webhook_transaction_replaced() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the handler ended its transaction itself' USING ERRCODE = 'OH002';
END $$;

-- Deallocates what a handler prepared by SQL; the driver's own statements are not from_sql. `guarded`: the session has a
-- prepared statement of ours, oncehook. Without it the driver's are gone too, by DEALLOCATE ALL, and it is of no more use.
CREATE FUNCTION webhook_deallocate(guarded boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    prepared name;
    is_whole boolean := NOT guarded;
BEGIN
    FOR prepared IN SELECT s.name FROM pg_prepared_statement() s WHERE s.from_sql LOOP
        IF guarded AND prepared = 'oncehook' THEN
            is_whole := true;
        ELSE
            EXECUTE format('DEALLOCATE %I', prepared);
        END IF;
    END LOOP;
    IF NOT is_whole THEN
        RAISE EXCEPTION 'the handler deallocated prepared statements that are not its own' USING ERRCODE = 'OH003';
    END IF;
END $$;

-- The processed status of one event, inside its handler's transaction. A plan that was made for a small table must not
-- stay: no sequential scan.
CREATE PROCEDURE webhook_finish(
    receipt bigint, a_lease bigint, a_handler text, a_version text, seconds double precision, cleans boolean, guarded boolean
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    only_ours boolean;  -- NULL: nothing is prepared by SQL
BEGIN
    IF current_setting('oncehook.transaction', true) IS DISTINCT FROM 'open' THEN
        PERFORM webhook_transaction_replaced();
    END IF;
    IF cleans THEN
        SELECT bool_and(s.name = 'oncehook') INTO only_ours FROM pg_prepared_statement() s WHERE s.from_sql;
        IF only_ours IS DISTINCT FROM nullif(guarded, false) THEN
            PERFORM webhook_deallocate(guarded);
        END IF;
    END IF;
    UPDATE webhook_receipts r
    SET status = 'processed', outcome = 'processed', handler = a_handler, version = a_version, last_error = NULL,
        lease_until = NULL, crashes = 0,
        started_at = coalesce(statement_timestamp() - seconds * interval '1 second', r.leased_at),
        processed_at = statement_timestamp(), next_attempt_at = NULL
    WHERE r.id = receipt AND r.lease = a_lease AND r.status IS NOT DISTINCT FROM 'processing';
    IF NOT FOUND THEN
        PERFORM webhook_lease_lost();
    END IF;
END $$;

-- The same for a batch: all of them, or an error that nobody else raises.
CREATE PROCEDURE webhook_finish_batch(
    receipts bigint[], leases bigint[], a_handler text, a_version text, seconds double precision, cleans boolean,
    guarded boolean
) LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('oncehook.transaction', true) IS DISTINCT FROM 'open' THEN
        PERFORM webhook_transaction_replaced();
    END IF;
    IF cleans THEN
        PERFORM webhook_deallocate(guarded);
    END IF;
    CALL webhook_mark(receipts, leases, a_handler, a_version, seconds);
END $$;
