-- What a worker needs: the lease with its fence, and what came of every attempt.
ALTER TABLE webhook_receipts
    ADD COLUMN lease       bigint NOT NULL DEFAULT 0,  -- counts the leases of this receipt: the fence
    ADD COLUMN lease_until timestamptz,
    ADD COLUMN leased_at   timestamptz,
    ADD COLUMN worker      text,
    ADD COLUMN crashes     integer NOT NULL DEFAULT 0,  -- leases in a row that ran out; such a receipt is leased alone
    ADD COLUMN is_inline   boolean NOT NULL DEFAULT false,  -- the provider's own retries drive it, no worker does
    ADD COLUMN serial_key  text COLLATE "C",
    ADD COLUMN outcome     text,
    ADD COLUMN handler     text;

DROP INDEX webhook_receipts_unfinished;
CREATE INDEX webhook_receipts_due ON webhook_receipts ((coalesce(next_attempt_at, received_at)), id)
    WHERE status IN ('received', 'retrying') AND NOT is_inline;
CREATE INDEX webhook_receipts_leased ON webhook_receipts (lease_until) WHERE status = 'processing';
CREATE INDEX webhook_receipts_failed ON webhook_receipts (received_at, id) WHERE status = 'failed';
CREATE INDEX webhook_receipts_serial ON webhook_receipts (source, serial_key, id)
    WHERE serial_key IS NOT NULL AND status NOT IN ('processed', 'ignored');
-- A receipt is written three times in its life: room on the page, and dead rows cleared early, keep leasing quick.
ALTER TABLE webhook_receipts SET (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

CREATE TABLE webhook_attempts (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    receipt_id bigint NOT NULL,
    number     integer NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL DEFAULT now(),
    outcome    text NOT NULL CHECK (outcome IN ('processed', 'no handler', 'retrying', 'failed', 'crashed', 'released')),
    error      text,
    traceback  text,
    handler    text,
    version    text,
    worker     text
);
CREATE INDEX webhook_attempts_receipt ON webhook_attempts (receipt_id, id);
CREATE INDEX webhook_attempts_version ON webhook_attempts (version, receipt_id);

-- Whoever leases a receipt of a serial key holds the key's row here while it chooses.
CREATE TABLE webhook_serials (
    source text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL,
    PRIMARY KEY (source, key)
);

-- What people did: replays, erasures. Never pruned.
CREATE TABLE webhook_audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT now(),
    actor  text NOT NULL,
    action text NOT NULL,
    detail text NOT NULL
);
