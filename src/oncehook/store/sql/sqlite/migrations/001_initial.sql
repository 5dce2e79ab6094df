-- The whole schema of the first release. After the release, this file must not change: add a new NNN_name.sql instead.
-- Times are texts: RFC 3339 in UTC with microseconds, which sort as times.

-- == Receipts ==

-- One row per event and consumer. The unique constraint decides which delivery was first: it is new if the row of the
-- consumer `main` is. Rows of other consumers are written in the same transaction, and name the row of `main` as `main_id`.
CREATE TABLE webhook_receipts (
    -- The event.
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    source          TEXT NOT NULL CHECK (length(CAST(source AS BLOB)) BETWEEN 1 AND 255),
    provider        TEXT NOT NULL,
    tenant          TEXT NOT NULL DEFAULT '' CHECK (length(CAST(tenant AS BLOB)) <= 128),
    event_id        TEXT NOT NULL CHECK (length(CAST(event_id AS BLOB)) BETWEEN 1 AND 255),
    type            TEXT,
    object_id       TEXT,
    delivery_id     TEXT,
    occurred_at     TEXT,
    received_at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    correlation_id  TEXT,
    fingerprint     BLOB NOT NULL,
    serial_key      TEXT,
    is_inline       INTEGER NOT NULL DEFAULT 0,  -- retried by the provider, never by a worker
    consumer        TEXT NOT NULL DEFAULT 'main' CHECK (length(CAST(consumer AS BLOB)) BETWEEN 1 AND 255),
    origin          TEXT,  -- where it came from, if not over HTTP: the queue of an intake, such as sqs:orders
    main_id         INTEGER,  -- the receipt of `main`, which has the payload and the duplicates; NULL on that receipt itself

    -- Its state.
    status          TEXT NOT NULL
                    CHECK (status IN ('received', 'processing', 'processed', 'retrying', 'failed', 'ignored')),
    attempts        INTEGER NOT NULL DEFAULT 0,
    crashes         INTEGER NOT NULL DEFAULT 0,  -- consecutive leases that expired; above 0, it is quarantined
    replays         INTEGER NOT NULL DEFAULT 0,
    next_attempt_at TEXT,
    processed_at    TEXT,
    failed_at       TEXT,
    replayed_at     TEXT,
    unhandled_at    TEXT,  -- since when no running process has a handler for it

    -- Its lease.
    lease           INTEGER NOT NULL DEFAULT 0,  -- the fencing counter: each lease adds a random number
    lease_until     TEXT,
    leased_at       TEXT,
    worker          TEXT,

    -- Its last attempt.
    started_at      TEXT,
    outcome         TEXT,
    handler         TEXT,
    version         TEXT,
    last_error      TEXT,

    UNIQUE (source, event_id, tenant, consumer)
);

-- Lists of events.
CREATE INDEX webhook_receipts_received ON webhook_receipts (received_at, id);
CREATE INDEX webhook_receipts_object ON webhook_receipts (object_id, received_at) WHERE object_id IS NOT NULL;
CREATE INDEX webhook_receipts_tenant ON webhook_receipts (tenant, received_at, id) WHERE tenant <> '';
CREATE INDEX webhook_receipts_main ON webhook_receipts (main_id) WHERE main_id IS NOT NULL;
CREATE INDEX webhook_receipts_failed ON webhook_receipts (received_at, id) WHERE status = 'failed';

-- Leasing: events that are due, by consumer; those of tenants, which take turns; leases that expire.
CREATE INDEX webhook_receipts_due ON webhook_receipts (consumer, coalesce(next_attempt_at, received_at), id)
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL;
CREATE INDEX webhook_receipts_turns ON webhook_receipts (consumer, source, tenant, coalesce(next_attempt_at, received_at), id)
    WHERE tenant <> '' AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL;
CREATE INDEX webhook_receipts_leased ON webhook_receipts (lease_until) WHERE status = 'processing';

-- Serial keys: the unique index lets at most one receipt of a key be processed at a time. With one writer, ids ascend in
-- the order of arrival.
CREATE UNIQUE INDEX webhook_receipts_serial_processing ON webhook_receipts (consumer, source, serial_key)
    WHERE serial_key IS NOT NULL AND status = 'processing';
CREATE INDEX webhook_receipts_serial_waiting ON webhook_receipts (consumer, source, serial_key, id)
    WHERE serial_key IS NOT NULL AND status IN ('received', 'retrying') AND unhandled_at IS NULL;
CREATE INDEX webhook_receipts_serial_failed ON webhook_receipts (consumer, source, serial_key, id)
    WHERE serial_key IS NOT NULL AND status = 'failed';

-- The oldest waiting event of each consumer and source, events without a handler, inline events that wait for their provider.
CREATE INDEX webhook_receipts_unfinished ON webhook_receipts (consumer, source, coalesce(replayed_at, received_at))
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NULL;
CREATE INDEX webhook_receipts_unhandled ON webhook_receipts (consumer, source, type, received_at, id)
    WHERE unhandled_at IS NOT NULL AND status IN ('received', 'retrying');
CREATE INDEX webhook_receipts_inline_waiting ON webhook_receipts (received_at) WHERE is_inline AND status = 'retrying';

-- Values besides the event id that no two receipts of a source share, such as Mailgun's token.
CREATE TABLE webhook_keys (
    source     TEXT NOT NULL,
    tenant     TEXT NOT NULL DEFAULT '',
    key        TEXT NOT NULL,
    receipt_id INTEGER NOT NULL,
    PRIMARY KEY (source, tenant, key)
);
CREATE INDEX webhook_keys_receipt ON webhook_keys (receipt_id);

-- == Payloads ==

-- The exact bytes as received. They can be pruned while their receipt stays and recognizes duplicates.
CREATE TABLE webhook_payloads (
    receipt_id INTEGER PRIMARY KEY,
    body       BLOB NOT NULL,
    headers    TEXT NOT NULL,
    key_id     TEXT,  -- the key that encrypted body and headers; NULL if they are plain
    object     TEXT  -- the address of the payload object that has the body; NULL if it is here
);

-- The objects of the payload store. A row is committed before its object is written, and is deleted after its object is
-- deleted, so no object is forgotten. A claim takes the object (receipt_id), unless it is released: a released object has
-- no payload, never gets one, and is deleted.
CREATE TABLE webhook_payload_objects (
    address     TEXT PRIMARY KEY,
    size        INTEGER NOT NULL,
    created_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    receipt_id  INTEGER,
    is_released INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX webhook_payload_objects_receipt ON webhook_payload_objects (receipt_id) WHERE receipt_id IS NOT NULL;
CREATE INDEX webhook_payload_objects_free ON webhook_payload_objects (created_at) WHERE receipt_id IS NULL;

-- The keys that have encrypted payloads, effect arguments or error texts. `proof` is a text that the key encrypted: it shows
-- whether a key of the same id is the same key.
CREATE TABLE webhook_encryption_keys (
    key_id        TEXT PRIMARY KEY,
    proof         TEXT NOT NULL,
    first_used_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
);

-- == Attempts ==

-- All attempts except those that processed an event. Those are stored on the receipt, which saves an insert per event.
-- The view webhook_attempts has all attempts.
CREATE TABLE webhook_past_attempts (
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
CREATE INDEX webhook_past_attempts_receipt ON webhook_past_attempts (receipt_id, id);
CREATE INDEX webhook_past_attempts_version ON webhook_past_attempts (version, receipt_id) WHERE version IS NOT NULL;
CREATE INDEX webhook_past_attempts_failed ON webhook_past_attempts (ended_at)
    WHERE outcome IN ('retrying', 'failed', 'crashed');

-- == Deliveries ==

-- Duplicate deliveries. They are written in the background and never change a receipt.
CREATE TABLE webhook_deliveries (
    id          INTEGER PRIMARY KEY,
    receipt_id  INTEGER NOT NULL,
    delivery_id TEXT,
    received_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    fingerprint BLOB NOT NULL,
    same_body   INTEGER NOT NULL CHECK (same_body IN (0, 1))
);
CREATE INDEX webhook_deliveries_receipt ON webhook_deliveries (receipt_id, same_body);
CREATE INDEX webhook_deliveries_received ON webhook_deliveries (received_at);

-- Ack latency of all processes: deliveries per latency bucket, by the minute in which a process flushed its counters.
CREATE TABLE webhook_acks (
    source    TEXT NOT NULL,
    minute_at TEXT NOT NULL,
    bucket    INTEGER NOT NULL,
    acked     INTEGER NOT NULL,
    PRIMARY KEY (source, minute_at, bucket)
);
CREATE INDEX webhook_acks_minute ON webhook_acks (minute_at);

-- == Rejections ==

-- Samples of rejected requests for the signature doctor: a small ring per source.
CREATE TABLE webhook_rejections (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    source      TEXT NOT NULL,
    tenant      TEXT NOT NULL DEFAULT '',
    rejected_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    reason      TEXT NOT NULL,
    detail      TEXT NOT NULL,
    method      TEXT NOT NULL,
    query       TEXT NOT NULL,
    headers     TEXT NOT NULL,
    body        BLOB NOT NULL CHECK (length(body) <= 65536),
    size        INTEGER NOT NULL
);
CREATE INDEX webhook_rejections_source ON webhook_rejections (source, id);

-- Counts of rejected requests, by the minute in which a process flushed its counters.
CREATE TABLE webhook_refusals (
    source    TEXT NOT NULL,
    minute_at TEXT NOT NULL,
    reason    TEXT NOT NULL,
    refused   INTEGER NOT NULL,
    PRIMARY KEY (source, minute_at, reason)
);
CREATE INDEX webhook_refusals_minute ON webhook_refusals (minute_at);

-- When each secret of a source last verified a delivery. `secret` is a short digest that does not reveal the secret.
CREATE TABLE webhook_secrets (
    source        TEXT NOT NULL,
    secret        TEXT NOT NULL,
    verified      INTEGER NOT NULL DEFAULT 0,
    first_used_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    last_used_at  TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    PRIMARY KEY (source, secret)
);

-- == Effects ==

-- The outbox: one row per key, recorded in the handler's transaction and run by the relay after the commit. Each row has a
-- status, because a cursor over ids would miss transactions that commit late.
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

-- Requests of handlers that changed nothing: an effect whose key exists, or a stale state of an entity.
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

-- == Entities ==

-- The newest state of each entity: the maximum by (is_terminal, at, version, event_id), regardless of the arrival order.
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

-- == Email ==

-- Events of one recipient of one message. Each is stored once, however often it is reported, and outlives its payload.
CREATE TABLE webhook_email_events (
    source      TEXT NOT NULL,
    key         TEXT NOT NULL CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 255),
    provider    TEXT NOT NULL,
    type        TEXT NOT NULL,
    bounce      TEXT CHECK (bounce IN ('hard', 'soft')),
    message_id  TEXT NOT NULL,
    recipient   TEXT NOT NULL,
    domain      TEXT NOT NULL,
    occurred_at TEXT NOT NULL,
    reason      TEXT,
    tags        TEXT NOT NULL,
    metadata    TEXT NOT NULL,
    receipt_id  INTEGER NOT NULL,
    PRIMARY KEY (source, key)
);
CREATE INDEX webhook_email_events_message ON webhook_email_events (message_id, recipient, source);
CREATE INDEX webhook_email_events_suppressing ON webhook_email_events (recipient, occurred_at)
    WHERE type IN ('bounced', 'complained', 'unsubscribed', 'rejected');
CREATE INDEX webhook_email_events_occurred ON webhook_email_events (occurred_at);

-- The status of a message for a recipient, by the event with the greatest (place, event_key). Can be rebuilt from
-- webhook_email_events.
CREATE TABLE webhook_email_status (
    message_id   TEXT NOT NULL,
    recipient    TEXT NOT NULL,
    source       TEXT NOT NULL,
    status       TEXT,
    bounce       TEXT,
    reason       TEXT,
    occurred_at  TEXT,
    place        TEXT NOT NULL,
    event_key    TEXT NOT NULL,
    delivered_at TEXT,
    opened_at    TEXT,
    clicked_at   TEXT,
    last_at      TEXT NOT NULL,
    PRIMARY KEY (message_id, recipient, source)
);
CREATE INDEX webhook_email_status_last ON webhook_email_status (last_at);

-- Addresses that must not be sent to, since when and why. A row stays when its events are pruned, and when a person
-- removes the suppression.
CREATE TABLE webhook_suppressions (
    address       TEXT PRIMARY KEY,
    suppressed_at TEXT,
    reason        TEXT,
    source        TEXT NOT NULL DEFAULT '',
    event_key     TEXT NOT NULL DEFAULT '',
    message_id    TEXT NOT NULL DEFAULT '',
    added_at      TEXT,
    added_reason  TEXT,
    removed_at    TEXT,
    note          TEXT,
    actor         TEXT
);

-- == Alerts ==

-- Incidents of a rule and a source. The partial unique index lets at most one of them be open.
CREATE TABLE webhook_incidents (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    key          TEXT NOT NULL UNIQUE,
    rule         TEXT NOT NULL,
    source       TEXT NOT NULL,
    opened_at    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    value        REAL NOT NULL,
    worst        REAL NOT NULL,
    threshold    REAL NOT NULL,
    summary      TEXT NOT NULL,
    below_at     TEXT,
    recovered_at TEXT
);
CREATE UNIQUE INDEX webhook_incidents_open ON webhook_incidents (rule, source) WHERE recovered_at IS NULL;
CREATE INDEX webhook_incidents_recovered ON webhook_incidents (recovered_at) WHERE recovered_at IS NOT NULL;

-- Notifications of an incident, one row per target and `word`. `lease` is the fencing counter. While a notification is
-- being sent, its lease expires at `next_attempt_at`.
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

-- == Operations ==

-- The audit log: actions of people, such as replays and erasures. Never pruned.
CREATE TABLE webhook_audit (
    id     INTEGER PRIMARY KEY,
    at     TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    actor  TEXT NOT NULL,
    action TEXT NOT NULL,
    detail TEXT NOT NULL
);
-- A replay writes one row per batch; its progress is counted over the rows of its run.
CREATE INDEX webhook_audit_run ON webhook_audit (detail ->> 'run');

-- Paused sources: their events are accepted, and no worker leases them until the source is resumed.
CREATE TABLE webhook_pauses (
    source    TEXT NOT NULL,
    consumer  TEXT NOT NULL DEFAULT '',
    paused_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    ends_at   TEXT,
    actor     TEXT NOT NULL,
    reason    TEXT,
    PRIMARY KEY (source, consumer)
);

-- The leader of each task that one process does for all. `number` is the fencing counter.
CREATE TABLE webhook_leaders (
    task       TEXT PRIMARY KEY,
    number     INTEGER NOT NULL,
    leader     TEXT NOT NULL,
    taken_at   TEXT NOT NULL,
    expires_at TEXT NOT NULL
);

-- == Roster ==

-- Running processes. A process is live for one minute after `seen_at`.
CREATE TABLE webhook_workers (
    name          TEXT PRIMARY KEY,
    registered_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    seen_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
);

-- The patterns that each process handles. `matcher` is the pattern in the syntax of GLOB. A projection handles a type only
-- while no process has a handler for it.
CREATE TABLE webhook_handlers (
    worker        TEXT NOT NULL,
    consumer      TEXT NOT NULL,
    source        TEXT NOT NULL,
    pattern       TEXT NOT NULL,
    matcher       TEXT NOT NULL,
    is_projection INTEGER NOT NULL CHECK (is_projection IN (0, 1)),
    PRIMARY KEY (worker, consumer, source, pattern)
);

-- == Run-time settings ==

-- Consumers other than `main`, with the sources they subscribe to. A subscription stays until a person removes it, so that
-- events which arrive while no worker runs are received for it too.
CREATE TABLE webhook_consumers (
    name          TEXT NOT NULL,
    source        TEXT NOT NULL,
    patterns      TEXT NOT NULL,
    settings      TEXT NOT NULL,
    revision      INTEGER NOT NULL,
    registered_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    seen_at       TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    PRIMARY KEY (name, source)
);

-- The token bucket of each consumer with a rate.
CREATE TABLE webhook_rates (
    consumer    TEXT PRIMARY KEY,
    tokens      REAL NOT NULL,
    refilled_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'))
);

-- Sources that were made at run time. `secrets` is encrypted. A removed source keeps its row, without its secrets.
CREATE TABLE webhook_sources (
    name       TEXT PRIMARY KEY,
    settings   TEXT NOT NULL,
    secrets    TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    removed_at TEXT,
    actor      TEXT NOT NULL
);

-- Tenants of a source, with their secrets. `secrets` is encrypted. A removed tenant keeps its row, without its secrets.
CREATE TABLE webhook_tenants (
    source     TEXT NOT NULL,
    tenant     TEXT NOT NULL,
    secrets    TEXT NOT NULL,
    revision   INTEGER NOT NULL,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')),
    removed_at TEXT,
    actor      TEXT NOT NULL,
    PRIMARY KEY (source, tenant)
);
CREATE INDEX webhook_tenants_revision ON webhook_tenants (revision);

-- A number that every change of these tables increments. Processes query it once a second.
CREATE TABLE webhook_revisions (
    name   TEXT PRIMARY KEY,
    number INTEGER NOT NULL
);
INSERT INTO webhook_revisions (name, number) VALUES ('settings', 0);

-- == Identity ==

-- One row with a random number. Each service that starts replaces it, and so does a process that finds older data than it
-- has seen before. So every process recognizes a restored backup.
CREATE TABLE webhook_identity (
    epoch INTEGER NOT NULL
);
INSERT INTO webhook_identity (epoch) VALUES (abs(random() % 4503599627370496));

-- == Fast path ==

-- One row. Deleting receipts raises `deleted_up_to` in the same transaction, so that no process remembers a deleted receipt.
-- `secret` signs the receipts that processes share in a cache.
CREATE TABLE webhook_fast_path (
    id            INTEGER PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    secret        TEXT NOT NULL DEFAULT (hex(randomblob(32))),
    deleted_up_to INTEGER NOT NULL DEFAULT 0
);
INSERT INTO webhook_fast_path DEFAULT VALUES;

CREATE TRIGGER webhook_receipts_deleted AFTER DELETE ON webhook_receipts WHEN OLD.main_id IS NULL
BEGIN
    UPDATE webhook_fast_path SET deleted_up_to = OLD.id WHERE deleted_up_to < OLD.id;
END;

-- == Views ==

-- All attempts. Ids ascend with the attempts of a receipt, and the attempt stored on the receipt is the last.
CREATE VIEW webhook_attempts AS
SELECT id, receipt_id, number, started_at, ended_at, outcome, error, traceback, handler, version, worker
FROM webhook_past_attempts
UNION ALL
SELECT 4611686018427387904 + id, id, attempts, started_at, processed_at, outcome, NULL, NULL, handler, version, worker
FROM webhook_receipts WHERE status = 'processed' AND started_at IS NOT NULL;

-- Dead letters, for alerts in SQL.
CREATE VIEW webhook_dlq AS
SELECT r.id AS receipt, r.source, r.tenant, r.consumer, r.event_id, r.type, r.object_id, r.attempts, r.last_error,
       r.received_at, r.failed_at, p.body AS payload, p.object AS payload_object
FROM webhook_receipts r LEFT JOIN webhook_payloads p ON p.receipt_id = coalesce(r.main_id, r.id)
WHERE r.status = 'failed';

-- The patterns of the live processes.
CREATE VIEW webhook_live_handlers AS
SELECT h.worker, h.consumer, h.source, h.pattern, h.matcher, h.is_projection, w.seen_at
FROM webhook_handlers h JOIN webhook_workers w ON w.name = h.worker
WHERE w.seen_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-60 seconds');
