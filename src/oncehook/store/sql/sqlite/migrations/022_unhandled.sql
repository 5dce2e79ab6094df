-- Which processes run, and what each of them handles. A process that has not been seen for a minute does not count.
CREATE TABLE webhook_workers (
    name          TEXT PRIMARY KEY,
    registered_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    seen_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
);
-- `matcher` is the pattern as GLOB takes it. A projection handles a type only while no process has a handler for it.
CREATE TABLE webhook_handlers (
    worker        TEXT NOT NULL,
    source        TEXT NOT NULL,
    pattern       TEXT NOT NULL,
    matcher       TEXT NOT NULL,
    is_projection INTEGER NOT NULL CHECK (is_projection IN (0, 1)),
    PRIMARY KEY (worker, source, pattern)
);
CREATE VIEW webhook_live_handlers AS
SELECT h.worker, h.source, h.pattern, h.matcher, h.is_projection, w.seen_at
FROM webhook_handlers h JOIN webhook_workers w ON w.name = h.worker
WHERE w.seen_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-60 seconds');

-- Receipts that no process has a handler for wait apart from the others, so that no lease passes over them.
ALTER TABLE webhook_receipts ADD COLUMN unhandled_at TEXT;
CREATE INDEX webhook_receipts_unhandled ON webhook_receipts (source, type, received_at, id)
    WHERE unhandled_at IS NOT NULL AND status IN ('received', 'retrying');
DROP INDEX webhook_receipts_due;
CREATE INDEX webhook_receipts_due ON webhook_receipts (coalesce(next_attempt_at, received_at), id)
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL;
DROP INDEX webhook_receipts_serial_waiting;
CREATE INDEX webhook_receipts_serial_waiting ON webhook_receipts (source, serial_key, id)
    WHERE serial_key IS NOT NULL AND status IN ('received', 'retrying') AND unhandled_at IS NULL;
DROP INDEX webhook_receipts_unfinished;
CREATE INDEX webhook_receipts_unfinished ON webhook_receipts (source, coalesce(replayed_at, received_at))
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NULL;
