-- The mark as routines, so that their plans are kept in each session: planning costs more than running, and the message
-- that marks and commits cannot be a prepared statement.

-- One mark; false if its lease was lost. By the primary key alone: a plan that was made while the table was small must not
-- stay when it has grown, and `status` is compared so oddly because the index of receipts that are being processed must
-- not be read instead.
CREATE FUNCTION webhook_settle_one(
    a_receipt bigint, a_lease bigint, a_status text, an_outcome text, an_after double precision, an_error text,
    a_traceback text, a_handler text, a_version text, a_seconds double precision, has_crashed boolean
) RETURNS boolean LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    held record;
BEGIN
    IF has_crashed THEN
        PERFORM FROM webhook_receipts r WHERE r.id = a_receipt FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN RETURN false; END IF;
    END IF;
    UPDATE webhook_receipts r
    SET status = a_status, outcome = an_outcome, handler = a_handler, last_error = an_error, lease_until = NULL,
        crashes = CASE WHEN has_crashed THEN r.crashes + 1 ELSE 0 END,
        processed_at = CASE WHEN a_status = 'processed' THEN statement_timestamp() END,
        next_attempt_at = statement_timestamp() + an_after * interval '1 second'
    WHERE r.id = a_receipt AND r.lease = a_lease AND r.status IS NOT DISTINCT FROM 'processing'
    RETURNING r.attempts, r.worker, r.leased_at INTO held;
    IF NOT FOUND THEN RETURN false; END IF;
    INSERT INTO webhook_attempts
        (receipt_id, number, started_at, ended_at, outcome, error, traceback, handler, version, worker)
    VALUES (a_receipt, held.attempts, coalesce(clock_timestamp() - a_seconds * interval '1 second', held.leased_at),
            clock_timestamp(), an_outcome, an_error, a_traceback, a_handler, a_version, held.worker);
    RETURN true;
END $$;

-- Many marks, in the order of their receipts; returns those whose lease still held.
CREATE FUNCTION webhook_settle(given json) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
DECLARE
    g record;
BEGIN
    FOR g IN SELECT * FROM json_to_recordset(given) AS s (
        receipt bigint, lease bigint, status text, outcome text, after double precision, error text, traceback text,
        handler text, version text, seconds double precision, crashed boolean
    ) ORDER BY s.receipt LOOP
        IF webhook_settle_one(g.receipt, g.lease, g.status, g.outcome, g.after, g.error, g.traceback, g.handler,
                              g.version, g.seconds, g.crashed) THEN
            RETURN NEXT g.receipt;
        END IF;
    END LOOP;
END $$;

-- The marks of a handler's transaction: all of them, or an error that nobody else raises.
CREATE PROCEDURE webhook_mark(given json, expected bigint) LANGUAGE plpgsql AS $$
BEGIN
    IF (SELECT count(*) FROM webhook_settle(given)) <> expected THEN
        RAISE EXCEPTION 'a lease was lost' USING ERRCODE = 'OH001';
    END IF;
END $$;

-- The mark of one event whose handler ended well, which is nearly every one.
CREATE PROCEDURE webhook_mark_processed(receipt bigint, lease bigint, handler text, version text, seconds double precision)
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT webhook_settle_one(receipt, lease, 'processed', 'processed', NULL, NULL, NULL, handler, version, seconds, false)
    THEN
        RAISE EXCEPTION 'a lease was lost' USING ERRCODE = 'OH001';
    END IF;
END $$;

-- Only versions that were set are ever looked for: one index less to write for every attempt where none is.
DROP INDEX webhook_attempts_version;
CREATE INDEX webhook_attempts_version ON webhook_attempts (version, receipt_id) WHERE version IS NOT NULL;
