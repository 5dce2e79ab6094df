-- Email facts: what happened to one recipient of one message, once however often it is told. They outlive payloads.
CREATE TABLE webhook_email_events (
    source      text COLLATE "C" NOT NULL,
    key         text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    provider    text COLLATE "C" NOT NULL,
    type        text COLLATE "C" NOT NULL,
    bounce      text COLLATE "C" CHECK (bounce IN ('hard', 'soft')),
    message_id  text COLLATE "C" NOT NULL,
    recipient   text COLLATE "C" NOT NULL,
    domain      text COLLATE "C" NOT NULL,
    occurred_at timestamptz NOT NULL,
    reason      text,
    tags        text NOT NULL,
    metadata    text NOT NULL,
    receipt_id  bigint NOT NULL,
    CONSTRAINT webhook_email_events_once PRIMARY KEY (source, key)
);
CREATE INDEX webhook_email_events_message ON webhook_email_events (message_id, recipient, source);
CREATE INDEX webhook_email_events_suppressing ON webhook_email_events (recipient, occurred_at)
    WHERE type IN ('bounced', 'complained', 'unsubscribed');
CREATE INDEX webhook_email_events_occurred ON webhook_email_events USING brin (occurred_at);

-- What follows from the facts for a message and a recipient: the greatest by (place, event_key). Can be made anew from them.
CREATE TABLE webhook_email_status (
    message_id   text COLLATE "C" NOT NULL,
    recipient    text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,
    status       text COLLATE "C",
    bounce       text COLLATE "C",
    reason       text,
    occurred_at  timestamptz,
    place        text COLLATE "C" NOT NULL,
    event_key    text COLLATE "C" NOT NULL,
    delivered_at timestamptz,
    opened_at    timestamptz,
    clicked_at   timestamptz,
    last_at      timestamptz NOT NULL,
    PRIMARY KEY (message_id, recipient, source)
);
CREATE INDEX webhook_email_status_last ON webhook_email_status (last_at);
-- A message has several events within minutes: its row is written again while it is still at hand.
ALTER TABLE webhook_email_status SET (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);

-- Who must not be sent to, since when and why. A row stays when its facts are pruned, and when a person lifts it.
CREATE TABLE webhook_suppressions (
    address      text COLLATE "C" PRIMARY KEY,
    suppressed_at timestamptz,
    reason       text COLLATE "C",
    source       text COLLATE "C" NOT NULL DEFAULT '',
    event_key    text COLLATE "C" NOT NULL DEFAULT '',
    message_id   text COLLATE "C" NOT NULL DEFAULT '',
    added_at     timestamptz,
    added_reason text COLLATE "C",
    removed_at   timestamptz,
    note         text,
    actor        text
);
