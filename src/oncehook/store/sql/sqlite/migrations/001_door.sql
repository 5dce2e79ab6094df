-- Receipts are the ledger: small, whole, and the unique constraint that decides who was first.
-- Times are texts, UTC, RFC 3339 with microseconds, so that they sort and read as times.
CREATE TABLE webhook_receipts (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    source          TEXT NOT NULL CHECK (length(CAST(source AS BLOB)) BETWEEN 1 AND 255),
    provider        TEXT NOT NULL,
    event_id        TEXT NOT NULL CHECK (length(CAST(event_id AS BLOB)) BETWEEN 1 AND 255),
    type            TEXT,
    object_id       TEXT,
    delivery_id     TEXT,
    occurred_at     TEXT,
    received_at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    status          TEXT NOT NULL
                    CHECK (status IN ('received', 'processing', 'processed', 'retrying', 'failed', 'ignored')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at TEXT,
    processed_at    TEXT,
    last_error      TEXT,
    correlation_id  TEXT,
    replays         INTEGER NOT NULL DEFAULT 0,
    fingerprint     BLOB NOT NULL,
    UNIQUE (source, event_id)
);
CREATE INDEX webhook_receipts_received ON webhook_receipts (received_at, id);
CREATE INDEX webhook_receipts_object ON webhook_receipts (object_id, received_at) WHERE object_id IS NOT NULL;
CREATE INDEX webhook_receipts_unfinished ON webhook_receipts (status, received_at)
    WHERE status NOT IN ('processed', 'ignored');

-- Payloads are the bulk: the exact bytes as received. They may be pruned while dedupe goes on.
CREATE TABLE webhook_payloads (
    receipt_id INTEGER PRIMARY KEY,
    body       BLOB NOT NULL,
    headers    TEXT NOT NULL
);

-- Deliveries of events that were here before. Appended in the background; a receipt is never written for one.
CREATE TABLE webhook_deliveries (
    id          INTEGER PRIMARY KEY,
    receipt_id  INTEGER NOT NULL,
    delivery_id TEXT,
    received_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    fingerprint BLOB NOT NULL,
    same_body   INTEGER NOT NULL CHECK (same_body IN (0, 1))
);
CREATE INDEX webhook_deliveries_receipt ON webhook_deliveries (receipt_id, same_body);

-- Dead letters, for alerts in SQL.
CREATE VIEW webhook_dlq AS
SELECT r.id AS receipt, r.source, r.event_id, r.type, r.object_id, r.attempts, r.last_error, r.received_at, p.body AS payload
FROM webhook_receipts r LEFT JOIN webhook_payloads p ON p.receipt_id = r.id
WHERE r.status = 'failed';
