-- A rejection whose reason is the address suppresses it too: the facts that may suppress are found by one index.
DROP INDEX webhook_email_events_suppressing;
CREATE INDEX webhook_email_events_suppressing ON webhook_email_events (recipient, occurred_at)
    WHERE type IN ('bounced', 'complained', 'unsubscribed', 'rejected');
