-- How long acks took, of all processes: how many deliveries fell into which bucket of latencies, by the minute in which a
-- process wrote down what it had counted. Kept for a few hours.
CREATE TABLE webhook_acks (
    source    TEXT NOT NULL,
    minute_at TEXT NOT NULL,
    bucket    INTEGER NOT NULL,
    acked     INTEGER NOT NULL,
    PRIMARY KEY (source, minute_at, bucket)
);
CREATE INDEX webhook_acks_minute ON webhook_acks (minute_at);
