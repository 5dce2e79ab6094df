-- Receipts are the ledger: small, whole, and the unique constraint that decides who was first.
-- Ids are drawn before the insert, so that a claim whose COMMIT got no reply can be repeated and knows its own row.
CREATE SEQUENCE webhook_receipt_ids AS bigint;

CREATE TABLE webhook_receipts (
    id              bigint PRIMARY KEY,
    source          text COLLATE "C" NOT NULL CHECK (octet_length(source) BETWEEN 1 AND 255),
    provider        text COLLATE "C" NOT NULL,
    event_id        text COLLATE "C" NOT NULL CHECK (octet_length(event_id) BETWEEN 1 AND 255),
    type            text COLLATE "C",
    object_id       text COLLATE "C",
    delivery_id     text COLLATE "C",
    occurred_at     timestamptz,
    received_at     timestamptz NOT NULL DEFAULT now(),
    status          text COLLATE "C" NOT NULL
                    CHECK (status IN ('received', 'processing', 'processed', 'retrying', 'failed', 'ignored')),
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    processed_at    timestamptz,
    last_error      text,
    correlation_id  text,
    replays         integer NOT NULL DEFAULT 0,
    fingerprint     bytea NOT NULL,
    CONSTRAINT webhook_receipts_once UNIQUE (source, event_id)
);
CREATE INDEX webhook_receipts_received ON webhook_receipts (received_at, id);
CREATE INDEX webhook_receipts_object ON webhook_receipts (object_id, received_at) WHERE object_id IS NOT NULL;
CREATE INDEX webhook_receipts_unfinished ON webhook_receipts (status, received_at)
    WHERE status NOT IN ('processed', 'ignored');

-- Payloads are the bulk: the exact bytes as received, a partition a day, so that pruning drops a table instead of rows.
CREATE TABLE webhook_payloads (
    receipt_id bigint NOT NULL,
    day        date NOT NULL,
    body       bytea NOT NULL,
    headers    text NOT NULL,
    PRIMARY KEY (receipt_id, day)
) PARTITION BY RANGE (day);

-- Deliveries of events that were here before. Appended in the background; a receipt is never written for one.
CREATE TABLE webhook_deliveries (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    receipt_id  bigint NOT NULL,
    delivery_id text COLLATE "C",
    received_at timestamptz NOT NULL DEFAULT now(),
    fingerprint bytea NOT NULL,
    same_body   boolean NOT NULL
);
CREATE INDEX webhook_deliveries_receipt ON webhook_deliveries (receipt_id, same_body);

-- Dead letters, for alerts in SQL.
CREATE VIEW webhook_dlq AS
SELECT r.id AS receipt, r.source, r.event_id, r.type, r.object_id, r.attempts, r.last_error, r.received_at, p.body AS payload
FROM webhook_receipts r
LEFT JOIN webhook_payloads p ON p.receipt_id = r.id AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
WHERE r.status = 'failed';
