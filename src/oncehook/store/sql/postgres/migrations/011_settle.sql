-- Many marks in one statement. One by one, each would open every index of the ledger and read its constraints anew.
-- Those that are taken back from a crashed worker go one by one still: where somebody holds one, it is passed.
CREATE OR REPLACE FUNCTION webhook_settle(given json) RETURNS SETOF bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    g record;
BEGIN
    IF EXISTS (SELECT FROM json_to_recordset(given) AS s (crashed boolean) WHERE s.crashed) THEN
        FOR g IN SELECT * FROM json_to_recordset(given) AS s (
            receipt bigint, lease bigint, status text, outcome text, after double precision, error text, traceback text,
            handler text, version text, seconds double precision, crashed boolean
        ) ORDER BY s.receipt LOOP
            IF webhook_settle_one(g.receipt, g.lease, g.status, g.outcome, g.after, g.error, g.traceback, g.handler,
                                  g.version, g.seconds, g.crashed) THEN
                RETURN NEXT g.receipt;
            END IF;
        END LOOP;
        RETURN;
    END IF;
    RETURN QUERY
    WITH offered AS MATERIALIZED (
        SELECT * FROM json_to_recordset(given) AS s (
            receipt bigint, lease bigint, status text, outcome text, after double precision, error text, traceback text,
            handler text, version text, seconds double precision
        )
    ), held AS (  -- in the order of their receipts, as everybody takes them
        SELECT r.id FROM offered o JOIN webhook_receipts r ON r.id = o.receipt
        WHERE r.lease = o.lease AND r.status IS NOT DISTINCT FROM 'processing'
        ORDER BY r.id FOR UPDATE OF r
    ), marked AS (
        UPDATE webhook_receipts r
        SET status = o.status, outcome = o.outcome, handler = o.handler, last_error = o.error, lease_until = NULL,
            crashes = 0, processed_at = CASE WHEN o.status = 'processed' THEN statement_timestamp() END,
            next_attempt_at = statement_timestamp() + o.after * interval '1 second'
        FROM held h JOIN offered o ON o.receipt = h.id
        WHERE r.id = h.id AND r.lease = o.lease AND r.status IS NOT DISTINCT FROM 'processing'
        RETURNING r.id, r.attempts, r.worker, r.leased_at, o.outcome, o.error, o.traceback, o.handler, o.version, o.seconds
    ), kept AS (
        INSERT INTO webhook_attempts
            (receipt_id, number, started_at, ended_at, outcome, error, traceback, handler, version, worker)
        SELECT m.id, m.attempts, coalesce(clock_timestamp() - m.seconds * interval '1 second', m.leased_at),
               clock_timestamp(), m.outcome, m.error, m.traceback, m.handler, m.version, m.worker
        FROM marked m ORDER BY m.id
    )
    SELECT m.id FROM marked m ORDER BY m.id;
END $$;

-- The mark of one event whose handler ended well, which is nearly every one: one statement too.
CREATE OR REPLACE PROCEDURE webhook_mark_processed(
    receipt bigint, lease bigint, handler text, version text, seconds double precision
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    WITH marked AS (
        UPDATE webhook_receipts r
        SET status = 'processed', outcome = 'processed', handler = $3, last_error = NULL, lease_until = NULL, crashes = 0,
            processed_at = statement_timestamp(), next_attempt_at = NULL
        WHERE r.id = $1 AND r.lease = $2 AND r.status IS NOT DISTINCT FROM 'processing'
        RETURNING r.attempts, r.worker, r.leased_at
    )
    INSERT INTO webhook_attempts (receipt_id, number, started_at, ended_at, outcome, handler, version, worker)
    SELECT $1, m.attempts, coalesce(clock_timestamp() - $5 * interval '1 second', m.leased_at), clock_timestamp(),
           'processed', $3, $4, m.worker
    FROM marked m;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a lease was lost' USING ERRCODE = 'OH001';
    END IF;
END $$;

-- What a column may hold is a matter of its type: a constraint of the table would be read and checked at every update,
-- also of columns that are not written.
CREATE DOMAIN webhook_name AS text COLLATE "C" CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN webhook_state AS text COLLATE "C"
    CHECK (VALUE IN ('received', 'processing', 'processed', 'retrying', 'failed', 'ignored'));
CREATE DOMAIN webhook_outcome AS text
    CHECK (VALUE IN ('processed', 'no handler', 'retrying', 'failed', 'crashed', 'released'));
DROP VIEW webhook_dlq;
ALTER TABLE webhook_receipts
    DROP CONSTRAINT webhook_receipts_source_check,
    DROP CONSTRAINT webhook_receipts_event_id_check,
    DROP CONSTRAINT webhook_receipts_status_check,
    ALTER COLUMN source TYPE webhook_name,
    ALTER COLUMN event_id TYPE webhook_name,
    ALTER COLUMN status TYPE webhook_state;
ALTER TABLE webhook_attempts
    DROP CONSTRAINT webhook_attempts_outcome_check,
    ALTER COLUMN outcome TYPE webhook_outcome;
CREATE VIEW webhook_dlq AS
SELECT r.id AS receipt, r.source, r.event_id, r.type, r.object_id, r.attempts, r.last_error, r.received_at, p.body AS payload
FROM webhook_receipts r
LEFT JOIN webhook_payloads p ON p.receipt_id = r.id AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
WHERE r.status = 'failed';
