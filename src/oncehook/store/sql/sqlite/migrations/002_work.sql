-- What a worker needs: the lease with its fence, and what came of every attempt.
ALTER TABLE webhook_receipts ADD COLUMN lease INTEGER NOT NULL DEFAULT 0;  -- counts the leases of this receipt: the fence
ALTER TABLE webhook_receipts ADD COLUMN lease_until TEXT;
ALTER TABLE webhook_receipts ADD COLUMN leased_at TEXT;
ALTER TABLE webhook_receipts ADD COLUMN worker TEXT;
ALTER TABLE webhook_receipts ADD COLUMN crashes INTEGER NOT NULL DEFAULT 0;  -- leases in a row that ran out; such a receipt is leased alone
ALTER TABLE webhook_receipts ADD COLUMN is_inline INTEGER NOT NULL DEFAULT 0;  -- the provider's own retries drive it, no worker does
ALTER TABLE webhook_receipts ADD COLUMN serial_key TEXT;
ALTER TABLE webhook_receipts ADD COLUMN outcome TEXT;
ALTER TABLE webhook_receipts ADD COLUMN handler TEXT;

DROP INDEX webhook_receipts_unfinished;
CREATE INDEX webhook_receipts_due ON webhook_receipts (coalesce(next_attempt_at, received_at), id)
    WHERE status IN ('received', 'retrying') AND NOT is_inline;
CREATE INDEX webhook_receipts_leased ON webhook_receipts (lease_until) WHERE status = 'processing';
CREATE INDEX webhook_receipts_failed ON webhook_receipts (received_at, id) WHERE status = 'failed';
CREATE INDEX webhook_receipts_serial ON webhook_receipts (source, serial_key, id)
    WHERE serial_key IS NOT NULL AND status NOT IN ('processed', 'ignored');

CREATE TABLE webhook_attempts (
    id         INTEGER PRIMARY KEY,
    receipt_id INTEGER NOT NULL,
    number     INTEGER NOT NULL,
    started_at TEXT NOT NULL,
    ended_at   TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    outcome    TEXT NOT NULL CHECK (outcome IN ('processed', 'no handler', 'retrying', 'failed', 'crashed', 'released')),
    error      TEXT,
    traceback  TEXT,
    handler    TEXT,
    version    TEXT,
    worker     TEXT
);
CREATE INDEX webhook_attempts_receipt ON webhook_attempts (receipt_id, id);
CREATE INDEX webhook_attempts_version ON webhook_attempts (version, receipt_id);

-- What people did: replays, erasures. Never pruned.
CREATE TABLE webhook_audit (
    id     INTEGER PRIMARY KEY,
    at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    actor  TEXT NOT NULL,
    action TEXT NOT NULL,
    detail TEXT NOT NULL
);
