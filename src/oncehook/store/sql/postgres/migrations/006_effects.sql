-- What is to be done outside the database: one row a key, recorded with the handler's work, performed after the commit.
-- A row has a state of its own: a cursor over ids would pass over transactions that commit late.
CREATE TABLE webhook_effects (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    scope           text COLLATE "C" NOT NULL CHECK (octet_length(scope) BETWEEN 1 AND 255),
    key             text COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    kind            text COLLATE "C" NOT NULL,
    target          text COLLATE "C" NOT NULL,
    args            text,
    source          text COLLATE "C" NOT NULL,
    receipt_id      bigint NOT NULL,
    status          text COLLATE "C" NOT NULL
                    CHECK (status IN ('waiting', 'performing', 'retrying', 'done', 'failed')),
    attempts        integer NOT NULL DEFAULT 0,
    created_at      timestamptz NOT NULL DEFAULT now(),
    next_attempt_at timestamptz,
    done_at         timestamptz,
    last_error      text,
    lease           bigint NOT NULL DEFAULT 0,
    lease_until     timestamptz,
    leased_at       timestamptz,
    worker          text,
    crashes         integer NOT NULL DEFAULT 0,
    replays         integer NOT NULL DEFAULT 0,
    CONSTRAINT webhook_effects_once UNIQUE (scope, key)
);
CREATE INDEX webhook_effects_due ON webhook_effects ((coalesce(next_attempt_at, created_at)), id)
    WHERE status IN ('waiting', 'retrying');
CREATE INDEX webhook_effects_leased ON webhook_effects (lease_until) WHERE status = 'performing';
CREATE INDEX webhook_effects_failed ON webhook_effects (id) WHERE status = 'failed';
CREATE INDEX webhook_effects_receipt ON webhook_effects (receipt_id);
CREATE INDEX webhook_effects_clearable ON webhook_effects (done_at) WHERE status = 'done' AND args IS NOT NULL;
ALTER TABLE webhook_effects SET (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);

-- The newest that is known of an entity: the maximum by (is_terminal, at, version, event_id), whatever the order of arrival.
CREATE TABLE webhook_entities (
    scope       text COLLATE "C" NOT NULL CHECK (octet_length(scope) BETWEEN 1 AND 255),
    kind        text COLLATE "C" NOT NULL CHECK (octet_length(kind) BETWEEN 1 AND 255),
    id          text COLLATE "C" NOT NULL CHECK (octet_length(id) BETWEEN 1 AND 255),
    state       text,
    at          timestamptz,
    version     bigint,
    is_terminal boolean NOT NULL,
    event_id    text COLLATE "C" NOT NULL,
    receipt_id  bigint NOT NULL,
    updated_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, kind, id)
);

-- What a handler asked for and did not get: an effect that was recorded before, a state that is older than the known one.
CREATE TABLE webhook_noops (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT now(),
    receipt_id bigint NOT NULL,
    source     text COLLATE "C" NOT NULL,
    reason     text COLLATE "C" NOT NULL CHECK (reason IN ('effect', 'stale')),
    scope      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL
);
CREATE INDEX webhook_noops_receipt ON webhook_noops (receipt_id);
