-- What the dashboard's charts count by. Duplicates are noted in the background and failed attempts are few: neither index
-- costs the door anything.
CREATE INDEX webhook_deliveries_received ON webhook_deliveries (received_at);
CREATE INDEX webhook_attempts_failed ON webhook_attempts (ended_at) WHERE outcome IN ('retrying', 'failed', 'crashed');
