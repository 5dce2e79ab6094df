-- What is to be done outside the database: one row a key, recorded with the handler's work, performed after the commit.
-- A row has a state of its own: a cursor over ids would pass over transactions that commit late.
CREATE TABLE webhook_effects (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    scope           TEXT NOT NULL CHECK (length(CAST(scope AS BLOB)) BETWEEN 1 AND 255),
    key             TEXT NOT NULL CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 255),
    kind            TEXT NOT NULL,
    target          TEXT NOT NULL,
    args            TEXT,
    source          TEXT NOT NULL,
    receipt_id      INTEGER NOT NULL,
    status          TEXT NOT NULL
                    CHECK (status IN ('waiting', 'performing', 'retrying', 'done', 'failed')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    created_at      TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    next_attempt_at TEXT,
    done_at         TEXT,
    last_error      TEXT,
    lease           INTEGER NOT NULL DEFAULT 0,
    lease_until     TEXT,
    leased_at       TEXT,
    worker          TEXT,
    crashes         INTEGER NOT NULL DEFAULT 0,
    replays         INTEGER NOT NULL DEFAULT 0,
    UNIQUE (scope, key)
);
CREATE INDEX webhook_effects_due ON webhook_effects (coalesce(next_attempt_at, created_at), id)
    WHERE status IN ('waiting', 'retrying');
CREATE INDEX webhook_effects_leased ON webhook_effects (lease_until) WHERE status = 'performing';
CREATE INDEX webhook_effects_failed ON webhook_effects (id) WHERE status = 'failed';
CREATE INDEX webhook_effects_receipt ON webhook_effects (receipt_id);
CREATE INDEX webhook_effects_clearable ON webhook_effects (done_at) WHERE status = 'done' AND args IS NOT NULL;

-- The newest that is known of an entity: the maximum by (is_terminal, at, version, event_id), whatever the order of arrival.
CREATE TABLE webhook_entities (
    scope       TEXT NOT NULL CHECK (length(CAST(scope AS BLOB)) BETWEEN 1 AND 255),
    kind        TEXT NOT NULL CHECK (length(CAST(kind AS BLOB)) BETWEEN 1 AND 255),
    id          TEXT NOT NULL CHECK (length(CAST(id AS BLOB)) BETWEEN 1 AND 255),
    state       TEXT,
    at          TEXT,
    version     INTEGER,
    is_terminal INTEGER NOT NULL CHECK (is_terminal IN (0, 1)),
    event_id    TEXT NOT NULL,
    receipt_id  INTEGER NOT NULL,
    updated_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    PRIMARY KEY (scope, kind, id)
);

-- What a handler asked for and did not get: an effect that was recorded before, a state that is older than the known one.
CREATE TABLE webhook_noops (
    id         INTEGER PRIMARY KEY,
    at         TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    receipt_id INTEGER NOT NULL,
    source     TEXT NOT NULL,
    reason     TEXT NOT NULL CHECK (reason IN ('effect', 'stale')),
    scope      TEXT NOT NULL,
    key        TEXT NOT NULL
);
CREATE INDEX webhook_noops_receipt ON webhook_noops (receipt_id);
