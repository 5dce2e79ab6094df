-- Email facts: what happened to one recipient of one message, once however often it is told. They outlive payloads.
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
    WHERE type IN ('bounced', 'complained', 'unsubscribed');
CREATE INDEX webhook_email_events_occurred ON webhook_email_events (occurred_at);

-- What follows from the facts for a message and a recipient: the greatest by (place, event_key). Can be made anew from them.
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

-- Who must not be sent to, since when and why. A row stays when its facts are pruned, and when a person lifts it.
CREATE TABLE webhook_suppressions (
    address      TEXT PRIMARY KEY,
    suppressed_at TEXT,
    reason       TEXT,
    source       TEXT NOT NULL DEFAULT '',
    event_key    TEXT NOT NULL DEFAULT '',
    message_id   TEXT NOT NULL DEFAULT '',
    added_at     TEXT,
    added_reason TEXT,
    removed_at   TEXT,
    note         TEXT,
    actor        TEXT
);
