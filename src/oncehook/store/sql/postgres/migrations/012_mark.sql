-- An attempt that ended well is the last of its receipt, and the ledger's own row has it: a row of history beside it would
-- double what a mark writes. The others have rows in webhook_past_attempts, and the view has them all.
ALTER TABLE webhook_receipts
    ADD COLUMN started_at timestamptz,
    ADD COLUMN version    text;
ALTER TABLE webhook_attempts RENAME TO webhook_past_attempts;
ALTER INDEX webhook_attempts_pkey RENAME TO webhook_past_attempts_pkey;
ALTER INDEX webhook_attempts_receipt RENAME TO webhook_past_attempts_receipt;
ALTER INDEX webhook_attempts_version RENAME TO webhook_past_attempts_version;
ALTER INDEX webhook_attempts_failed RENAME TO webhook_past_attempts_failed;

-- Ids grow with the attempts of a receipt: those of the ledger come after all others. What was processed before this
-- migration has no started_at, and its row among the others.
CREATE VIEW webhook_attempts AS
SELECT id, receipt_id, number, started_at, ended_at, CAST(outcome AS text) AS outcome, error, traceback, handler, version, worker
FROM webhook_past_attempts
UNION ALL
SELECT 4611686018427387904 + id, id, attempts, started_at, processed_at, outcome, NULL, NULL, handler, version, worker
FROM webhook_receipts WHERE status = 'processed' AND started_at IS NOT NULL;

-- What the prepared mark calls where it found no receipt to mark: the error of the other marks.
CREATE FUNCTION webhook_lease_lost() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a lease was lost' USING ERRCODE = 'OH001';
END $$;

DROP FUNCTION webhook_settle_one;
DROP PROCEDURE webhook_mark;
DROP PROCEDURE webhook_mark_processed;

-- The marks of a handler's transaction: all of them, or an error that nobody else raises. Receipts are given in order, here
-- and below, and so they are held in the same order by everybody.
CREATE PROCEDURE webhook_mark(
    receipts bigint[], leases bigint[], a_handler text, a_version text, seconds double precision
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    marked bigint;
BEGIN
    UPDATE webhook_receipts r
    SET status = 'processed', outcome = 'processed', handler = a_handler, version = a_version, last_error = NULL,
        lease_until = NULL, crashes = 0,
        started_at = coalesce(statement_timestamp() - seconds * interval '1 second', r.leased_at),
        processed_at = statement_timestamp(), next_attempt_at = NULL
    FROM unnest(receipts, leases) AS held (receipt, lease)
    WHERE r.id = held.receipt AND r.lease = held.lease AND r.status IS NOT DISTINCT FROM 'processing';
    GET DIAGNOSTICS marked = ROW_COUNT;
    IF marked <> cardinality(receipts) THEN
        PERFORM webhook_lease_lost();
    END IF;
END $$;

-- What came of attempts that used no transaction; returns those whose lease still held. Of those that are taken back from a
-- crashed worker, one that somebody holds is passed.
CREATE OR REPLACE FUNCTION webhook_settle(given json) RETURNS SETOF bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    WITH offered AS MATERIALIZED (
        SELECT * FROM json_to_recordset(given) AS s (
            receipt bigint, lease bigint, status text, outcome text, after double precision, error text, traceback text,
            handler text, version text, seconds double precision, crashed boolean
        )
    ), taken AS (
        SELECT r.id FROM offered o JOIN webhook_receipts r ON r.id = o.receipt
        WHERE r.lease = o.lease AND r.status IS NOT DISTINCT FROM 'processing' AND o.crashed IS TRUE
        ORDER BY r.id FOR UPDATE OF r SKIP LOCKED
    ), marked AS (
        UPDATE webhook_receipts r
        SET status = o.status, outcome = o.outcome, handler = o.handler, version = o.version, last_error = o.error,
            lease_until = NULL, crashes = CASE WHEN o.crashed THEN r.crashes + 1 ELSE 0 END,
            started_at = coalesce(statement_timestamp() - o.seconds * interval '1 second', r.leased_at),
            processed_at = CASE WHEN o.status = 'processed' THEN statement_timestamp() END,
            next_attempt_at = statement_timestamp() + o.after * interval '1 second'
        FROM offered o
        WHERE r.id = o.receipt AND r.lease = o.lease AND r.status IS NOT DISTINCT FROM 'processing'
          AND (o.crashed IS NOT TRUE OR r.id = ANY (ARRAY(SELECT id FROM taken)))
        RETURNING r.id, r.status, r.attempts, r.started_at, r.worker, o.outcome, o.error, o.traceback, o.handler, o.version
    ), kept AS (
        INSERT INTO webhook_past_attempts
            (receipt_id, number, started_at, ended_at, outcome, error, traceback, handler, version, worker)
        SELECT m.id, m.attempts, m.started_at, statement_timestamp(), m.outcome, m.error, m.traceback, m.handler,
               m.version, m.worker
        FROM marked m WHERE m.status <> 'processed' ORDER BY m.id
    )
    SELECT m.id FROM marked m ORDER BY m.id;
END $$;
