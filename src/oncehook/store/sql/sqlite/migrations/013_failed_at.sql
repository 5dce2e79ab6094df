-- When an event became a dead letter, and when it was last replayed: its age counts from there.
ALTER TABLE webhook_receipts ADD COLUMN failed_at TEXT;
ALTER TABLE webhook_receipts ADD COLUMN replayed_at TEXT;
-- For older dead letters the end of the last attempt is the best known time; without an attempt, the arrival.
UPDATE webhook_receipts
SET failed_at = coalesce(
    (SELECT max(a.ended_at) FROM webhook_past_attempts a WHERE a.receipt_id = webhook_receipts.id), received_at
)
WHERE status = 'failed';

DROP VIEW webhook_dlq;
CREATE VIEW webhook_dlq AS
SELECT r.id AS receipt, r.source, r.event_id, r.type, r.object_id, r.attempts, r.last_error, r.received_at, r.failed_at,
       p.body AS payload
FROM webhook_receipts r LEFT JOIN webhook_payloads p ON p.receipt_id = r.id
WHERE r.status = 'failed';
