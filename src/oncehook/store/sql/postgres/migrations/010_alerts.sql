-- What is wrong, and was: an incident of a rule and a source. At most one of them is open, and this is where that is held.
CREATE TABLE webhook_incidents (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key          text COLLATE "C" NOT NULL UNIQUE,
    rule         text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,
    opened_at    timestamptz NOT NULL DEFAULT now(),
    value        double precision NOT NULL,
    threshold    double precision NOT NULL,
    summary      text NOT NULL,
    below_at     timestamptz,
    recovered_at timestamptz
);
CREATE UNIQUE INDEX webhook_incidents_open ON webhook_incidents (rule, source) WHERE recovered_at IS NULL;
CREATE INDEX webhook_incidents_recovered ON webhook_incidents (recovered_at) WHERE recovered_at IS NOT NULL;

-- What each target is told of an incident: once a word, under a lease with a fence. `next_attempt_at` of one that is being
-- sent is when its lease runs out.
CREATE TABLE webhook_alerts (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    incident_id     bigint NOT NULL,
    target          text COLLATE "C" NOT NULL,
    word            text COLLATE "C" NOT NULL CHECK (word IN ('opened', 'reminder', 'recovered')),
    number          integer NOT NULL DEFAULT 0,
    status          text COLLATE "C" NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'sending', 'told', 'failed')),
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    told_at         timestamptz,
    last_error      text,
    lease           bigint NOT NULL DEFAULT 0,
    worker          text,
    CONSTRAINT webhook_alerts_once UNIQUE (incident_id, target, word, number)
);
CREATE INDEX webhook_alerts_due ON webhook_alerts (next_attempt_at, id) WHERE status IN ('waiting', 'sending');

-- How many deliveries were refused, by the minute in which a process wrote down what it had counted.
CREATE TABLE webhook_refusals (
    source    text COLLATE "C" NOT NULL,
    minute_at timestamptz NOT NULL,
    reason    text COLLATE "C" NOT NULL,
    refused   bigint NOT NULL,
    PRIMARY KEY (source, minute_at, reason)
);
CREATE INDEX webhook_refusals_minute ON webhook_refusals (minute_at);

-- Whose turn it is to do what one process does for all: `number` is the fence.
CREATE TABLE webhook_turns (
    name     text COLLATE "C" PRIMARY KEY,
    number   bigint NOT NULL,
    taken_at timestamptz NOT NULL
);

-- Inline receipts that wait for their provider to try again are few, and looked for all the time.
CREATE INDEX webhook_receipts_inline_waiting ON webhook_receipts (received_at) WHERE is_inline AND status = 'retrying';
