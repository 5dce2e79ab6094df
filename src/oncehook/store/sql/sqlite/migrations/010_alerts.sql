-- What is wrong, and was: an incident of a rule and a source. At most one of them is open, and this is where that is held.
CREATE TABLE webhook_incidents (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    key          TEXT NOT NULL UNIQUE,
    rule         TEXT NOT NULL,
    source       TEXT NOT NULL,
    opened_at    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    value        REAL NOT NULL,
    threshold    REAL NOT NULL,
    summary      TEXT NOT NULL,
    below_at     TEXT,
    recovered_at TEXT
);
CREATE UNIQUE INDEX webhook_incidents_open ON webhook_incidents (rule, source) WHERE recovered_at IS NULL;
CREATE INDEX webhook_incidents_recovered ON webhook_incidents (recovered_at) WHERE recovered_at IS NOT NULL;

-- What each target is told of an incident: once a word, under a lease with a fence. `next_attempt_at` of one that is being
-- sent is when its lease runs out.
CREATE TABLE webhook_alerts (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    incident_id     INTEGER NOT NULL,
    target          TEXT NOT NULL,
    word            TEXT NOT NULL CHECK (word IN ('opened', 'reminder', 'recovered')),
    number          INTEGER NOT NULL DEFAULT 0,
    status          TEXT NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'sending', 'told', 'failed')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    told_at         TEXT,
    last_error      TEXT,
    lease           INTEGER NOT NULL DEFAULT 0,
    worker          TEXT,
    UNIQUE (incident_id, target, word, number)
);
CREATE INDEX webhook_alerts_due ON webhook_alerts (next_attempt_at, id) WHERE status IN ('waiting', 'sending');

-- How many deliveries were refused, by the minute in which a process wrote down what it had counted.
CREATE TABLE webhook_refusals (
    source    TEXT NOT NULL,
    minute_at TEXT NOT NULL,
    reason    TEXT NOT NULL,
    refused   INTEGER NOT NULL,
    PRIMARY KEY (source, minute_at, reason)
);
CREATE INDEX webhook_refusals_minute ON webhook_refusals (minute_at);

-- Whose turn it is to do what one process does for all: `number` is the fence.
CREATE TABLE webhook_turns (
    name     TEXT PRIMARY KEY,
    number   INTEGER NOT NULL,
    taken_at TEXT NOT NULL
);

-- Inline receipts that wait for their provider to try again are few, and looked for all the time.
CREATE INDEX webhook_receipts_inline_waiting ON webhook_receipts (received_at) WHERE is_inline AND status = 'retrying';
