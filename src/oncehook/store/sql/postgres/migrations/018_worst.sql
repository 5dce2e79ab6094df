-- The highest value that an incident reached.
ALTER TABLE webhook_incidents ADD COLUMN worst double precision NOT NULL DEFAULT 0;
UPDATE webhook_incidents SET worst = value;
