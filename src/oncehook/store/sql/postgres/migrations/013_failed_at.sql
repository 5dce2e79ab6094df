-- When an event became a dead letter, and when it was last replayed: its age counts from there.
ALTER TABLE webhook_receipts
    ADD COLUMN failed_at   timestamptz,
    ADD COLUMN replayed_at timestamptz;
-- For older dead letters the end of the last attempt is the best known time; without an attempt, the arrival.
UPDATE webhook_receipts r
SET failed_at = coalesce((SELECT max(a.ended_at) FROM webhook_past_attempts a WHERE a.receipt_id = r.id), r.received_at)
WHERE r.status = 'failed';

DROP VIEW webhook_dlq;
CREATE VIEW webhook_dlq AS
SELECT r.id AS receipt, r.source, r.event_id, r.type, r.object_id, r.attempts, r.last_error, r.received_at, r.failed_at,
       p.body AS payload
FROM webhook_receipts r
LEFT JOIN webhook_payloads p ON p.receipt_id = r.id AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
WHERE r.status = 'failed';

-- As before, and it sets failed_at.
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
            failed_at = CASE WHEN o.status = 'failed' THEN statement_timestamp() END,
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
