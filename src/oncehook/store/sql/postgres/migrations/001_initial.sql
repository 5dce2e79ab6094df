-- The whole schema of the first release. After the release, this file must not change: add a new NNN_name.sql instead.

-- == Receipts ==

-- Types of columns. A domain is checked when its column is written. A table constraint would be checked at every update.
CREATE DOMAIN webhook_name AS text COLLATE "C" CHECK (octet_length(VALUE) BETWEEN 1 AND 255);
CREATE DOMAIN webhook_state AS text COLLATE "C"
    CHECK (VALUE IN ('received', 'processing', 'processed', 'retrying', 'failed', 'ignored'));
CREATE DOMAIN webhook_outcome AS text
    CHECK (VALUE IN ('processed', 'no handler', 'retrying', 'failed', 'crashed', 'released'));

-- A process draws ids before it inserts, so it recognizes its own rows if the reply to a COMMIT is lost.
CREATE SEQUENCE webhook_receipt_ids AS bigint;

-- One row per event and consumer. The unique constraint decides which delivery was first: it is new if the row of the
-- consumer `main` is. Rows of other consumers are written in the same statement, and name the row of `main` as `main_id`.
CREATE TABLE webhook_receipts (
    -- The event.
    id              bigint PRIMARY KEY,
    source          webhook_name NOT NULL,
    provider        text COLLATE "C" NOT NULL,
    tenant          text COLLATE "C" NOT NULL DEFAULT '',
    event_id        webhook_name NOT NULL,
    type            text COLLATE "C",
    object_id       text COLLATE "C",
    delivery_id     text COLLATE "C",
    occurred_at     timestamptz,
    received_at     timestamptz NOT NULL DEFAULT now(),
    correlation_id  text,
    fingerprint     bytea NOT NULL,
    serial_key      text COLLATE "C",
    is_inline       boolean NOT NULL DEFAULT false,  -- retried by the provider, never by a worker
    consumer        text COLLATE "C" NOT NULL DEFAULT 'main',
    origin          text,  -- where it came from, if not over HTTP: the queue of an intake, such as sqs:orders
    main_id         bigint,  -- the receipt of `main`, which has the payload and the duplicates; NULL on that receipt itself

    -- Its state.
    status          webhook_state NOT NULL,
    attempts        integer NOT NULL DEFAULT 0,
    crashes         integer NOT NULL DEFAULT 0,  -- consecutive leases that expired; above 0, it is quarantined
    replays         integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    processed_at    timestamptz,
    failed_at       timestamptz,
    replayed_at     timestamptz,
    unhandled_at    timestamptz,  -- since when no running process has a handler for it

    -- Its lease.
    lease           bigint NOT NULL DEFAULT 0,  -- the fencing counter: each lease adds a random number
    lease_until     timestamptz,
    leased_at       timestamptz,
    worker          text,

    -- Its last attempt.
    started_at      timestamptz,
    outcome         text,
    handler         text,
    version         text,
    last_error      text,

    CONSTRAINT webhook_receipts_once UNIQUE (source, event_id, tenant, consumer)
) WITH (  -- receipts are updated twice: free space on pages and early vacuum keep leases fast
    fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000
);

-- Lists of events.
CREATE INDEX webhook_receipts_received ON webhook_receipts (received_at, id);
CREATE INDEX webhook_receipts_object ON webhook_receipts (object_id, received_at) WHERE object_id IS NOT NULL;
CREATE INDEX webhook_receipts_tenant ON webhook_receipts (tenant, received_at, id) WHERE tenant <> '';
CREATE INDEX webhook_receipts_main ON webhook_receipts (main_id) WHERE main_id IS NOT NULL;
CREATE INDEX webhook_receipts_failed ON webhook_receipts (received_at, id) WHERE status = 'failed';

-- Leasing: events that are due, by consumer; those of tenants, which take turns; leases that expire.
CREATE INDEX webhook_receipts_due ON webhook_receipts (consumer, (coalesce(next_attempt_at, received_at)), id)
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL;
CREATE INDEX webhook_receipts_turns ON webhook_receipts (consumer, source, tenant, (coalesce(next_attempt_at, received_at)), id)
    WHERE tenant <> '' AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL;
CREATE INDEX webhook_receipts_leased ON webhook_receipts (lease_until) WHERE status = 'processing';

-- Serial keys: the unique index lets at most one receipt of a key be processed at a time. The others are ordered by time
-- first, because each process draws its ids in blocks.
CREATE UNIQUE INDEX webhook_receipts_serial_processing ON webhook_receipts (consumer, source, serial_key)
    WHERE serial_key IS NOT NULL AND status = 'processing';
CREATE INDEX webhook_receipts_serial_waiting ON webhook_receipts (consumer, source, serial_key, received_at, id)
    WHERE serial_key IS NOT NULL AND status IN ('received', 'retrying') AND unhandled_at IS NULL;
CREATE INDEX webhook_receipts_serial_failed ON webhook_receipts (consumer, source, serial_key, received_at, id)
    WHERE serial_key IS NOT NULL AND status = 'failed';

-- The oldest waiting event of each source, events without a handler, inline events that wait for their provider.
CREATE INDEX webhook_receipts_unfinished ON webhook_receipts (consumer, source, (coalesce(replayed_at, received_at)))
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NULL;
CREATE INDEX webhook_receipts_unhandled ON webhook_receipts (consumer, source, type, received_at, id)
    WHERE unhandled_at IS NOT NULL AND status IN ('received', 'retrying');
CREATE INDEX webhook_receipts_inline_waiting ON webhook_receipts (received_at) WHERE is_inline AND status = 'retrying';

-- Values besides the event id that no two receipts of a source share, such as Mailgun's token.
CREATE TABLE webhook_keys (
    source     text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" NOT NULL DEFAULT '',
    key        text COLLATE "C" NOT NULL,
    receipt_id bigint NOT NULL,
    PRIMARY KEY (source, tenant, key)
);
CREATE INDEX webhook_keys_receipt ON webhook_keys (receipt_id);

-- == Payloads ==

-- The exact bytes as received, with one partition per day, so that pruning drops a partition instead of rows.
CREATE TABLE webhook_payloads (
    receipt_id bigint NOT NULL,
    day        date NOT NULL,
    body       bytea NOT NULL,
    headers    text NOT NULL,
    key_id     text,  -- the key that encrypted body and headers; NULL if they are plain
    object     text COLLATE "C",  -- the address of the payload object that has the body; NULL if it is here
    PRIMARY KEY (receipt_id, day)
) PARTITION BY RANGE (day);

-- The objects of the payload store. A row is committed before its object is written, and is deleted after its object is
-- deleted, so no object is forgotten. A claim takes the object (receipt_id), unless it is released: a released object has
-- no payload, never gets one, and is deleted.
CREATE TABLE webhook_payload_objects (
    address     text COLLATE "C" PRIMARY KEY,
    size        bigint NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    receipt_id  bigint,
    day         date,  -- that of the payload
    is_released boolean NOT NULL DEFAULT false
);
CREATE INDEX webhook_payload_objects_receipt ON webhook_payload_objects (receipt_id) WHERE receipt_id IS NOT NULL;
CREATE INDEX webhook_payload_objects_day ON webhook_payload_objects (day) WHERE day IS NOT NULL;
CREATE INDEX webhook_payload_objects_free ON webhook_payload_objects (created_at) WHERE receipt_id IS NULL;

-- The keys that have encrypted payloads, effect arguments or error texts. `proof` is a text that the key encrypted: it shows
-- whether a key of the same id is the same key.
CREATE TABLE webhook_encryption_keys (
    key_id        text COLLATE "C" PRIMARY KEY,
    proof         text NOT NULL,
    first_used_at timestamptz NOT NULL DEFAULT now()
);

-- == Attempts ==

-- All attempts except those that processed an event. Those are stored on the receipt, which saves an insert per event.
-- The view webhook_attempts has all attempts.
CREATE TABLE webhook_past_attempts (
    id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    receipt_id bigint NOT NULL,
    number     integer NOT NULL,
    started_at timestamptz NOT NULL,
    ended_at   timestamptz NOT NULL DEFAULT now(),
    outcome    webhook_outcome NOT NULL,
    error      text,
    traceback  text,
    handler    text,
    version    text,
    worker     text
);
CREATE INDEX webhook_past_attempts_receipt ON webhook_past_attempts (receipt_id, id);
CREATE INDEX webhook_past_attempts_version ON webhook_past_attempts (version, receipt_id) WHERE version IS NOT NULL;
CREATE INDEX webhook_past_attempts_failed ON webhook_past_attempts (ended_at)
    WHERE outcome IN ('retrying', 'failed', 'crashed');

-- == Deliveries ==

-- Duplicate deliveries. They are written in the background and never change a receipt.
CREATE TABLE webhook_deliveries (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    receipt_id  bigint NOT NULL,
    delivery_id text COLLATE "C",
    received_at timestamptz NOT NULL DEFAULT now(),
    fingerprint bytea NOT NULL,
    same_body   boolean NOT NULL
);
CREATE INDEX webhook_deliveries_receipt ON webhook_deliveries (receipt_id, same_body);
CREATE INDEX webhook_deliveries_received ON webhook_deliveries (received_at);

-- Ack latency of all processes: deliveries per latency bucket, by the minute in which a process flushed its counters.
CREATE TABLE webhook_acks (
    source    text COLLATE "C" NOT NULL,
    minute_at timestamptz NOT NULL,
    bucket    integer NOT NULL,
    acked     bigint NOT NULL,
    PRIMARY KEY (source, minute_at, bucket)
);
CREATE INDEX webhook_acks_minute ON webhook_acks (minute_at);

-- == Rejections ==

-- Samples of rejected requests for the signature doctor: a small ring per source.
CREATE TABLE webhook_rejections (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source      text COLLATE "C" NOT NULL,
    tenant      text COLLATE "C" NOT NULL DEFAULT '',
    rejected_at timestamptz NOT NULL DEFAULT now(),
    reason      text COLLATE "C" NOT NULL,
    detail      text NOT NULL,
    method      text COLLATE "C" NOT NULL,
    query       text NOT NULL,
    headers     text NOT NULL,
    body        bytea NOT NULL CHECK (octet_length(body) <= 65536),
    size        bigint NOT NULL
);
CREATE INDEX webhook_rejections_source ON webhook_rejections (source, id);

-- Counts of rejected requests, by the minute in which a process flushed its counters.
CREATE TABLE webhook_refusals (
    source    text COLLATE "C" NOT NULL,
    minute_at timestamptz NOT NULL,
    reason    text COLLATE "C" NOT NULL,
    refused   bigint NOT NULL,
    PRIMARY KEY (source, minute_at, reason)
);
CREATE INDEX webhook_refusals_minute ON webhook_refusals (minute_at);

-- When each secret of a source last verified a delivery. `secret` is a short digest that does not reveal the secret.
CREATE TABLE webhook_secrets (
    source        text COLLATE "C" NOT NULL,
    secret        text COLLATE "C" NOT NULL,
    verified      bigint NOT NULL DEFAULT 0,
    first_used_at timestamptz NOT NULL DEFAULT now(),
    last_used_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, secret)
);

-- == Effects ==

-- The outbox: one row per key, recorded in the handler's transaction and run by the relay after the commit. Each row has a
-- status, because a cursor over ids would miss transactions that commit late.
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
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000);
CREATE INDEX webhook_effects_due ON webhook_effects ((coalesce(next_attempt_at, created_at)), id)
    WHERE status IN ('waiting', 'retrying');
CREATE INDEX webhook_effects_leased ON webhook_effects (lease_until) WHERE status = 'performing';
CREATE INDEX webhook_effects_failed ON webhook_effects (id) WHERE status = 'failed';
CREATE INDEX webhook_effects_receipt ON webhook_effects (receipt_id);
CREATE INDEX webhook_effects_clearable ON webhook_effects (done_at) WHERE status = 'done' AND args IS NOT NULL;

-- Requests of handlers that changed nothing: an effect whose key exists, or a stale state of an entity.
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

-- == Entities ==

-- The newest state of each entity: the maximum by (is_terminal, at, version, event_id), regardless of the arrival order.
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

-- == Email ==

-- Events of one recipient of one message. Each is stored once, however often it is reported, and outlives its payload.
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
    WHERE type IN ('bounced', 'complained', 'unsubscribed', 'rejected');
CREATE INDEX webhook_email_events_occurred ON webhook_email_events USING brin (occurred_at);

-- The status of a message for a recipient, by the event with the greatest (place, event_key). Can be rebuilt from
-- webhook_email_events. A message has several events within minutes, so its row is updated soon after it was inserted.
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
) WITH (fillfactor = 85, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX webhook_email_status_last ON webhook_email_status (last_at);

-- Addresses that must not be sent to, since when and why. A row stays when its events are pruned, and when a person
-- removes the suppression.
CREATE TABLE webhook_suppressions (
    address       text COLLATE "C" PRIMARY KEY,
    suppressed_at timestamptz,
    reason        text COLLATE "C",
    source        text COLLATE "C" NOT NULL DEFAULT '',
    event_key     text COLLATE "C" NOT NULL DEFAULT '',
    message_id    text COLLATE "C" NOT NULL DEFAULT '',
    added_at      timestamptz,
    added_reason  text COLLATE "C",
    removed_at    timestamptz,
    note          text,
    actor         text
);

-- == Alerts ==

-- Incidents of a rule and a source. The partial unique index lets at most one of them be open.
CREATE TABLE webhook_incidents (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key          text COLLATE "C" NOT NULL UNIQUE,
    rule         text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,
    opened_at    timestamptz NOT NULL DEFAULT now(),
    value        double precision NOT NULL,
    worst        double precision NOT NULL,
    threshold    double precision NOT NULL,
    summary      text NOT NULL,
    below_at     timestamptz,
    recovered_at timestamptz
);
CREATE UNIQUE INDEX webhook_incidents_open ON webhook_incidents (rule, source) WHERE recovered_at IS NULL;
CREATE INDEX webhook_incidents_recovered ON webhook_incidents (recovered_at) WHERE recovered_at IS NOT NULL;

-- Notifications of an incident, one row per target and `word`. `lease` is the fencing counter. While a notification is
-- being sent, its lease expires at `next_attempt_at`.
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

-- == Operations ==

-- The audit log: actions of people, such as replays and erasures. Never pruned.
CREATE TABLE webhook_audit (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at     timestamptz NOT NULL DEFAULT now(),
    actor  text NOT NULL,
    action text NOT NULL,
    detail text NOT NULL
);
-- A replay writes one row per batch; its progress is counted over the rows of its run.
CREATE INDEX webhook_audit_run ON webhook_audit ((detail::json ->> 'run'));

-- Paused sources and consumers: their events are accepted, and no worker leases them until they are resumed. A row has a
-- source, or a consumer and an empty source.
CREATE TABLE webhook_pauses (
    source    text COLLATE "C" NOT NULL,
    consumer  text COLLATE "C" NOT NULL DEFAULT '',
    paused_at timestamptz NOT NULL DEFAULT now(),
    ends_at   timestamptz,
    actor     text NOT NULL,
    reason    text,
    PRIMARY KEY (source, consumer)
);

-- The leader of each task that one process does for all. `number` is the fencing counter.
CREATE TABLE webhook_leaders (
    task       text COLLATE "C" PRIMARY KEY,
    number     bigint NOT NULL,
    leader     text NOT NULL,
    taken_at   timestamptz NOT NULL,
    expires_at timestamptz NOT NULL
);

-- == Roster ==

-- Running processes. A process is live for one minute after `seen_at`.
CREATE TABLE webhook_workers (
    name          text COLLATE "C" PRIMARY KEY,
    registered_at timestamptz NOT NULL DEFAULT now(),
    seen_at       timestamptz NOT NULL DEFAULT now()
);

-- The patterns that each process handles. `matcher` is the pattern in the syntax of LIKE. A projection handles a type only
-- while no process has a handler for it.
CREATE TABLE webhook_handlers (
    worker        text COLLATE "C" NOT NULL,
    consumer      text COLLATE "C" NOT NULL,
    source        text COLLATE "C" NOT NULL,
    pattern       text COLLATE "C" NOT NULL,
    matcher       text COLLATE "C" NOT NULL,
    is_projection boolean NOT NULL,
    PRIMARY KEY (worker, consumer, source, pattern)
);

-- == Run-time settings ==

-- Consumers other than `main`, with the sources they subscribe to. A subscription stays until a person removes it, so that
-- events which arrive while no worker runs are received for it too.
CREATE TABLE webhook_consumers (
    name          text COLLATE "C" NOT NULL,
    source        text COLLATE "C" NOT NULL,
    patterns      text NOT NULL,
    settings      text NOT NULL,
    revision      bigint NOT NULL,
    registered_at timestamptz NOT NULL DEFAULT now(),
    seen_at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (name, source)
);

-- The token bucket of each consumer with a rate.
CREATE TABLE webhook_rates (
    consumer    text COLLATE "C" PRIMARY KEY,
    tokens      double precision NOT NULL,
    refilled_at timestamptz NOT NULL DEFAULT now()
);

-- Sources that were made at run time. `secrets` is encrypted. A removed source keeps its row, without its secrets.
CREATE TABLE webhook_sources (
    name       text COLLATE "C" PRIMARY KEY,
    settings   text NOT NULL,
    secrets    text NOT NULL,
    revision   bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    removed_at timestamptz,
    actor      text NOT NULL
);

-- Tenants of a source, with their secrets. `secrets` is encrypted. A removed tenant keeps its row, without its secrets.
CREATE TABLE webhook_tenants (
    source     text COLLATE "C" NOT NULL,
    tenant     text COLLATE "C" NOT NULL,
    secrets    text NOT NULL,
    revision   bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    removed_at timestamptz,
    actor      text NOT NULL,
    PRIMARY KEY (source, tenant)
);
CREATE INDEX webhook_tenants_revision ON webhook_tenants (revision);

-- A number that every change of these tables increments. Processes query it once a second.
CREATE TABLE webhook_revisions (
    name   text COLLATE "C" PRIMARY KEY,
    number bigint NOT NULL
);
INSERT INTO webhook_revisions (name, number) VALUES ('settings', 0);

-- == Identity ==

-- One row with a random number. A process that finds older data than it has seen before replaces the number, so that every
-- process recognizes the restored backup.
CREATE TABLE webhook_identity (
    epoch bigint NOT NULL
);
INSERT INTO webhook_identity (epoch) VALUES ((random() * 4503599627370496)::bigint);

-- The cluster and its timeline, which a promotion and a point-in-time recovery change. A managed service may forbid these
-- functions: the result is then 'unknown', and the start of the server alone shows a failover.
CREATE FUNCTION webhook_timeline() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT system_identifier FROM pg_control_system()) || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8);
EXCEPTION WHEN OTHERS THEN
    RETURN 'unknown';
END $$;

-- == Fast path ==

-- One row. Deleting receipts raises `deleted_up_to` in the same transaction, so that no process remembers a deleted receipt.
-- `secret` signs the receipts that processes share in a cache.
CREATE TABLE webhook_fast_path (
    id            integer PRIMARY KEY DEFAULT 1 CHECK (id = 1),
    secret        text NOT NULL DEFAULT gen_random_uuid()::text || gen_random_uuid()::text,
    deleted_up_to bigint NOT NULL DEFAULT 0
);
INSERT INTO webhook_fast_path DEFAULT VALUES;

CREATE FUNCTION webhook_receipts_deleted() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE webhook_fast_path f SET deleted_up_to = d.id
    FROM (SELECT max(id) AS id FROM deleted WHERE main_id IS NULL) d
    WHERE d.id > f.deleted_up_to;
    RETURN NULL;
END $$;
CREATE TRIGGER webhook_receipts_deleted AFTER DELETE ON webhook_receipts REFERENCING OLD TABLE AS deleted
    FOR EACH STATEMENT EXECUTE FUNCTION webhook_receipts_deleted();
ALTER TABLE webhook_receipts ENABLE ALWAYS TRIGGER webhook_receipts_deleted;  -- also for a session that replicates or restores

-- == Shards ==

-- The shards of an inbox with several databases. `main` has a row for each, and every database has its own with `is_here`.
-- The ids of a shard begin at `number` * 10^13, so that those of two shards never clash.
CREATE TABLE webhook_shards (
    name    text COLLATE "C" PRIMARY KEY,
    number  integer NOT NULL UNIQUE,
    is_here boolean NOT NULL DEFAULT false
);

-- In `main`: the shard of each source that has been moved, or the shards over which its tenants are spread.
CREATE TABLE webhook_routes (
    source   text COLLATE "C" PRIMARY KEY,
    shard    text COLLATE "C" NOT NULL,
    number   bigint NOT NULL DEFAULT 1,  -- the number of changes
    moved_at timestamptz NOT NULL DEFAULT now(),
    actor    text NOT NULL
);

-- Moves of a source from one shard to another, in both databases. A trigger reads the phase before it lets a process write
-- a receipt or an effect of the source. The row of a source that has left stays, to reject processes that do not know it,
-- and so does that of a source that is here, to reject a move that began before.
CREATE TABLE webhook_moves (
    source     text COLLATE "C" PRIMARY KEY,
    phase      text COLLATE "C" NOT NULL CHECK (phase IN ('copying', 'draining', 'frozen', 'left', 'arriving', 'here')),
    from_shard text COLLATE "C" NOT NULL,
    to_shard   text COLLATE "C" NOT NULL,
    cursors    text NOT NULL DEFAULT '{}',
    has_paused boolean NOT NULL DEFAULT false,
    started_at timestamptz NOT NULL DEFAULT now(),
    frozen_at  timestamptz,
    left_at    timestamptz,
    actor      text NOT NULL
);

-- Rows of a source that changed while it is copied. `key` is a receipt, an effect, or an entity as JSON.
CREATE TABLE webhook_move_changes (
    id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text COLLATE "C" NOT NULL,
    kind   text COLLATE "C" NOT NULL,
    key    text COLLATE "C" NOT NULL
);

-- == Views ==

-- All attempts. Ids ascend with the attempts of a receipt, and the attempt stored on the receipt is the last.
CREATE VIEW webhook_attempts AS
SELECT id, receipt_id, number, started_at, ended_at, CAST(outcome AS text) AS outcome, error, traceback, handler, version, worker
FROM webhook_past_attempts
UNION ALL
SELECT 4611686018427387904 + id, id, attempts, started_at, processed_at, outcome, NULL, NULL, handler, version, worker
FROM webhook_receipts WHERE status = 'processed' AND started_at IS NOT NULL;

-- Dead letters, for alerts in SQL.
CREATE VIEW webhook_dlq AS
SELECT r.id AS receipt, r.source, r.tenant, r.consumer, r.event_id, r.type, r.object_id, r.attempts, r.last_error,
       r.received_at, r.failed_at, p.body AS payload, p.object AS payload_object
FROM webhook_receipts r
LEFT JOIN webhook_payloads p ON p.receipt_id = coalesce(r.main_id, r.id) AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
WHERE r.status = 'failed';

-- The patterns of the live processes.
CREATE VIEW webhook_live_handlers AS
SELECT h.worker, h.consumer, h.source, h.pattern, h.matcher, h.is_projection, w.seen_at
FROM webhook_handlers h JOIN webhook_workers w ON w.name = h.worker
WHERE w.seen_at > now() - interval '60 seconds';

-- == Settling ==

-- These are routines because each session caches their plans. Planning takes longer than running, and the message that
-- settles and commits cannot be a prepared statement. They read receipts only by primary key: sequential scans are off, so
-- that no plan for a small table is cached, and IS NOT DISTINCT FROM matches no partial index.

-- Raises the error of a lost lease. No other code raises its error code.
CREATE FUNCTION webhook_lease_lost() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'a lease was lost' USING ERRCODE = 'OH001';
END $$;

-- Settles attempts outside a handler's transaction, and returns the receipts whose lease was still held. Skips receipts of
-- a crashed worker that another session has locked.
CREATE FUNCTION webhook_settle(input json) RETURNS SETOF bigint LANGUAGE plpgsql SET enable_seqscan = off AS $$
BEGIN
    RETURN QUERY
    WITH offered AS MATERIALIZED (
        SELECT * FROM json_to_recordset(input) AS s (
            receipt bigint, lease bigint, status text, outcome text, after double precision, error text, traceback text,
            handler text, version text, seconds double precision, crashed boolean
        )
    ), taken AS (
        SELECT r.id FROM offered o JOIN webhook_receipts r ON r.id = o.receipt
        WHERE r.lease = o.lease AND r.status IS NOT DISTINCT FROM 'processing' AND o.crashed IS TRUE
        ORDER BY r.id FOR UPDATE OF r SKIP LOCKED
    ), settled AS (
        UPDATE webhook_receipts r
        SET status = o.status, outcome = o.outcome, handler = o.handler, version = o.version, last_error = o.error,
            lease_until = NULL, crashes = CASE WHEN o.crashed THEN r.crashes + 1 ELSE 0 END,
            started_at = coalesce(statement_timestamp() - o.seconds * interval '1 second', r.leased_at),
            processed_at = CASE WHEN o.status = 'processed' THEN statement_timestamp() END,
            failed_at = CASE WHEN o.status = 'failed' THEN statement_timestamp() END,
            leased_at = CASE WHEN o.after IS NULL THEN r.leased_at ELSE statement_timestamp() END,
            next_attempt_at = statement_timestamp() + o.after * interval '1 second'
        FROM offered o
        WHERE r.id = o.receipt AND r.lease = o.lease AND r.status IS NOT DISTINCT FROM 'processing'
          AND (o.crashed IS NOT TRUE OR r.id = ANY (ARRAY(SELECT id FROM taken)))
        RETURNING r.id, r.status, r.attempts, r.started_at, r.worker, o.outcome, o.error, o.traceback, o.handler, o.version
    ), recorded AS (
        INSERT INTO webhook_past_attempts
            (receipt_id, number, started_at, ended_at, outcome, error, traceback, handler, version, worker)
        SELECT m.id, m.attempts, m.started_at, statement_timestamp(), m.outcome, m.error, m.traceback, m.handler,
               m.version, m.worker
        FROM settled m WHERE m.status <> 'processed' ORDER BY m.id
    )
    SELECT m.id FROM settled m ORDER BY m.id;
END $$;

-- Raises the error of a handler that ended its transaction itself.
CREATE FUNCTION webhook_transaction_replaced() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the handler ended its transaction itself' USING ERRCODE = 'OH002';
END $$;

-- Deallocates the statements that a handler prepared in SQL. Those of the driver are not from_sql. With `guarded`, the
-- session has our prepared statement `oncehook`, which is kept.
CREATE FUNCTION webhook_deallocate(guarded boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    prepared name;
BEGIN
    FOR prepared IN
        SELECT s.name FROM pg_prepared_statement() s WHERE s.from_sql AND NOT (guarded AND s.name = 'oncehook')
    LOOP
        EXECUTE format('DEALLOCATE %I', prepared);
    END LOOP;
END $$;

-- Settles one receipt as processed, in its handler's transaction. With `resets`, it first resets the session, except roles,
-- cursors and advisory locks. `guarded` is as for webhook_deallocate; NULL keeps all prepared statements.
CREATE PROCEDURE webhook_finish(
    receipt bigint, a_lease bigint, a_handler text, a_version text, seconds double precision, resets boolean, guarded boolean
) LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('oncehook.transaction', true) IS DISTINCT FROM 'open' THEN
        PERFORM webhook_transaction_replaced();
    END IF;
    IF resets THEN
        RESET ALL;
        UNLISTEN *;
        DISCARD SEQUENCES;
        IF pg_my_temp_schema() <> 0 THEN
            DISCARD TEMP;
        END IF;
    END IF;
    IF guarded IS NOT NULL THEN
        PERFORM FROM pg_prepared_statement() s WHERE s.from_sql AND NOT (guarded AND s.name = 'oncehook');
        IF FOUND THEN
            PERFORM webhook_deallocate(guarded);
        END IF;
    END IF;
    SET LOCAL enable_seqscan = off;
    UPDATE webhook_receipts r
    SET status = 'processed', outcome = 'processed', handler = a_handler, version = a_version, last_error = NULL,
        lease_until = NULL, crashes = 0,
        started_at = coalesce(statement_timestamp() - seconds * interval '1 second', r.leased_at),
        processed_at = statement_timestamp(), next_attempt_at = NULL
    WHERE r.id = receipt AND r.lease = a_lease AND r.status IS NOT DISTINCT FROM 'processing';
    IF NOT FOUND THEN
        PERFORM webhook_lease_lost();
    END IF;
END $$;

-- Settles the other receipts of a batch after webhook_finish, or raises an error if any lease was lost. The receipts are in
-- ascending order, in which every process locks them.
CREATE PROCEDURE webhook_finish_others(
    receipts bigint[], leases bigint[], a_handler text, a_version text, seconds double precision
) LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    settled bigint;
BEGIN
    UPDATE webhook_receipts r
    SET status = 'processed', outcome = 'processed', handler = a_handler, version = a_version, last_error = NULL,
        lease_until = NULL, crashes = 0,
        started_at = coalesce(statement_timestamp() - seconds * interval '1 second', r.leased_at),
        processed_at = statement_timestamp(), next_attempt_at = NULL
    FROM unnest(receipts, leases) AS held (receipt, lease)
    WHERE r.id = held.receipt AND r.lease = held.lease AND r.status IS NOT DISTINCT FROM 'processing';
    GET DIAGNOSTICS settled = ROW_COUNT;
    IF settled <> cardinality(receipts) THEN
        PERFORM webhook_lease_lost();
    END IF;
END $$;

-- == Moves between shards ==

-- These are the functions of triggers that exist only in the two databases of a move. `oncehook.mover` is the source that
-- this transaction copies.

-- Raises the error of a source that does not live in this shard. No other code raises its error code.
CREATE FUNCTION webhook_source_moved() RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the source lives in another shard, or is being moved' USING ERRCODE = 'OH003';
END $$;

-- The advisory lock of a source that is moved. Writers share it, and a change of the phase takes it alone: it waits for the
-- transactions that have read the old phase, and later writers queue behind it.
CREATE FUNCTION webhook_move_lock(a_source text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended('oncehook move ' || a_source, 0)
$$;

-- Guards the receipts and effects of a source that is moved. While the source drains, no lease begins. After that no other
-- process writes: an insert fails, and an update changes nothing, so that the writer has lost its lease. FOR SHARE makes
-- the read fail, and not return an old phase, where the isolation level is not READ COMMITTED.
CREATE FUNCTION webhook_guard() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    current_phase text;
BEGIN
    IF current_setting('oncehook.mover', true) = NEW.source THEN
        RETURN NEW;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(webhook_move_lock(NEW.source));
    SELECT m.phase INTO current_phase FROM webhook_moves m WHERE m.source = NEW.source FOR SHARE;
    IF current_phase IN ('frozen', 'left', 'arriving') THEN
        IF TG_OP = 'UPDATE' THEN
            RETURN NULL;
        END IF;
        PERFORM webhook_source_moved();
    END IF;
    IF current_phase = 'draining' AND TG_OP = 'UPDATE' AND NEW.status IN ('processing', 'performing') THEN
        IF OLD.status <> NEW.status THEN
            RETURN NULL;
        END IF;
    END IF;
    RETURN NEW;
END $$;

-- Records a changed row. The arguments are the source, the kind, and the column with the key.
CREATE FUNCTION webhook_note_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed json := CASE WHEN TG_OP = 'DELETE' THEN row_to_json(OLD) ELSE row_to_json(NEW) END;
BEGIN
    IF TG_ARGV[2] = 'receipt_id' THEN
        PERFORM FROM webhook_receipts r WHERE r.id = (changed ->> 'receipt_id')::bigint AND r.source = TG_ARGV[0];
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    INSERT INTO webhook_move_changes (source, kind, key)
    SELECT TG_ARGV[0], TG_ARGV[1], CASE WHEN TG_ARGV[1] = 'entity'
        THEN json_build_array(changed ->> 'scope', changed ->> 'kind', changed ->> 'id')::text ELSE changed ->> TG_ARGV[2] END;
    RETURN NULL;
END $$;

-- Creates the triggers that guard a source, and with `logs` those that record its changes. CREATE TRIGGER waits for the
-- transactions that have written to the table, and blocks writers until then; the caller sets a lock timeout.
CREATE FUNCTION webhook_watch(a_source text, logs boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    suffix text := substr(md5(a_source), 1, 16);
    relation text;
    key text;
BEGIN
    PERFORM webhook_unwatch(a_source, true);
    FOREACH relation IN ARRAY ARRAY['effect', 'receipt'] LOOP
        EXECUTE format(
            'CREATE TRIGGER %I BEFORE INSERT OR UPDATE ON %I FOR EACH ROW WHEN (NEW.source = %L) EXECUTE FUNCTION webhook_guard()',
            'webhook_guard_' || suffix, 'webhook_' || relation || 's', a_source);
        CONTINUE WHEN NOT logs;
        EXECUTE format(
            'CREATE TRIGGER %I AFTER INSERT OR UPDATE ON %I FOR EACH ROW WHEN (NEW.source = %L) EXECUTE FUNCTION webhook_note_change(%L, %L, %L)',
            'webhook_note_' || suffix, 'webhook_' || relation || 's', a_source, a_source, relation, 'id');
        EXECUTE format(
            'CREATE TRIGGER %I AFTER DELETE ON %I FOR EACH ROW WHEN (OLD.source = %L) EXECUTE FUNCTION webhook_note_change(%L, %L, %L)',
            'webhook_drop_' || suffix, 'webhook_' || relation || 's', a_source, a_source, relation, 'id');
    END LOOP;
    IF logs THEN
        EXECUTE format(
            'CREATE TRIGGER %I AFTER INSERT ON webhook_deliveries FOR EACH ROW EXECUTE FUNCTION webhook_note_change(%L, %L, %L)',
            'webhook_note_' || suffix, a_source, 'receipt', 'receipt_id');
        EXECUTE format(
            'CREATE TRIGGER %I AFTER UPDATE OR DELETE ON webhook_payloads FOR EACH ROW EXECUTE FUNCTION webhook_note_change(%L, %L, %L)',
            'webhook_note_' || suffix, a_source, 'receipt', 'receipt_id');
        EXECUTE format(
            'CREATE TRIGGER %I AFTER INSERT OR UPDATE OR DELETE ON webhook_entities FOR EACH ROW EXECUTE FUNCTION webhook_note_change(%L, %L)',
            'webhook_note_' || suffix, a_source, 'entity');
    END IF;
END $$;

-- Drops the triggers that record the changes of a source, and with `guards` also those that guard it.
CREATE FUNCTION webhook_unwatch(a_source text, guards boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    suffix text := substr(md5(a_source), 1, 16);
    existing record;
BEGIN
    FOR existing IN
        SELECT t.tgname, t.tgrelid::regclass AS relation FROM pg_trigger t
        WHERE t.tgparentid = 0 AND (t.tgname IN ('webhook_note_' || suffix, 'webhook_drop_' || suffix)
              OR guards AND t.tgname = 'webhook_guard_' || suffix)
          AND t.tgrelid IN ('webhook_receipts'::regclass, 'webhook_effects'::regclass, 'webhook_deliveries'::regclass,
                            'webhook_payloads'::regclass, 'webhook_entities'::regclass)
        ORDER BY t.tgrelid::regclass::text, t.tgname
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', existing.tgname, existing.relation);
    END LOOP;
END $$;
