-- How long acks took, of all processes: how many deliveries fell into which bucket of latencies, by the minute in which a
-- process wrote down what it had counted. Kept for a few hours.
CREATE TABLE webhook_acks (
    source    text COLLATE "C" NOT NULL,
    minute_at timestamptz NOT NULL,
    bucket    integer NOT NULL,
    acked     bigint NOT NULL,
    PRIMARY KEY (source, minute_at, bucket)
);
CREATE INDEX webhook_acks_minute ON webhook_acks (minute_at);
