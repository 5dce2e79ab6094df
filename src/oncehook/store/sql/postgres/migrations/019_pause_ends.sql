-- Why a source is paused, and when the pause ends by itself.
ALTER TABLE webhook_pauses
    ADD COLUMN reason text,
    ADD COLUMN ends_at timestamptz;
