-- Serial keys: at most one receipt of a key is being processed, and this is where that is held, whoever leases.
CREATE UNIQUE INDEX webhook_receipts_serial_processing ON webhook_receipts (source, serial_key)
    WHERE serial_key IS NOT NULL AND status = 'processing';
-- There is one writer, so ids are in order of arrival.
CREATE INDEX webhook_receipts_serial_waiting ON webhook_receipts (source, serial_key, id)
    WHERE serial_key IS NOT NULL AND status IN ('received', 'retrying');
CREATE INDEX webhook_receipts_serial_failed ON webhook_receipts (source, serial_key, id)
    WHERE serial_key IS NOT NULL AND status = 'failed';
DROP INDEX webhook_receipts_serial;
-- What waits for its turn must not stand in the way of what has none.
DROP INDEX webhook_receipts_due;
CREATE INDEX webhook_receipts_due ON webhook_receipts (coalesce(next_attempt_at, received_at), id)
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL;
