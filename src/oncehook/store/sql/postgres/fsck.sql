-- Every statement only reads, and reads one window of a table: the rows with a key above :after and up to :last. The columns
-- of a check are `key`, which names the row, `receipt`, and `detail`.

-- name: fsck_window_receipts
SELECT max(id) AS last, count(*) AS rows, count(*) FILTER (
    WHERE true
      AND source = :source                                     --? source
      AND received_at >= :since                                --? since
) AS number
FROM (SELECT id, source, received_at FROM webhook_receipts WHERE id > CAST(:after AS bigint) ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_payloads
SELECT max(receipt_id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT receipt_id FROM webhook_payloads WHERE receipt_id > CAST(:after AS bigint) ORDER BY receipt_id LIMIT :limit) AS page

-- name: fsck_window_attempts
SELECT max(id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT id FROM webhook_past_attempts WHERE id > CAST(:after AS bigint) ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_keys
SELECT max(receipt_id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT receipt_id FROM webhook_keys WHERE receipt_id > CAST(:after AS bigint) ORDER BY receipt_id LIMIT :limit) AS page

-- name: fsck_window_noops
SELECT max(id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT id FROM webhook_noops WHERE id > CAST(:after AS bigint) ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_deliveries
SELECT max(id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT id FROM webhook_deliveries WHERE id > CAST(:after AS bigint) ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_effects
SELECT max(id) AS last, count(*) AS rows, count(*) FILTER (
    WHERE true
      AND source = :source                                     --? source
      AND created_at >= :since                                 --? since
) AS number
FROM (SELECT id, source, created_at FROM webhook_effects WHERE id > CAST(:after AS bigint) ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_entities
SELECT scope AS last_scope, kind AS last_kind, id AS last, count(*) OVER () AS rows, count(*) OVER () AS number
FROM (
    SELECT scope, kind, id FROM webhook_entities
    WHERE (scope, kind, id) > (CAST(:after_scope AS text), CAST(:after_kind AS text), CAST(:after AS text))
    ORDER BY scope, kind, id LIMIT :limit
) AS page
ORDER BY scope DESC, kind DESC, id DESC LIMIT 1

-- name: fsck_receipts
-- The receipts of a window. Those of a source that is being moved to another shard are left out. A fragment.
FROM webhook_receipts r
WHERE r.id > CAST(:after AS bigint) AND r.id <= CAST(:last AS bigint)
  AND r.source NOT IN (SELECT source FROM webhook_moves WHERE phase <> 'here')
  AND r.source = :source                                       --? source
  AND r.received_at >= :since                                  --? since

-- name: fsck_effects
-- The effects of a window. A fragment.
FROM webhook_effects e
WHERE e.id > CAST(:after AS bigint) AND e.id <= CAST(:last AS bigint)
  AND e.source NOT IN (SELECT source FROM webhook_moves WHERE phase <> 'here')
  AND e.source = :source                                       --? source
  AND e.created_at >= :since                                   --? since

-- name: fsck_payload_missing
-- An erasure deletes payloads of any status. Events that arrived before the last one are left out.
SELECT r.id AS key, r.id AS receipt, r.status || ' without a payload' AS detail
{> fsck_receipts}
  AND r.status NOT IN ('processed', 'ignored')
  AND r.received_at > coalesce((SELECT max(at) FROM webhook_audit WHERE action = 'forget'), '-infinity')
  AND NOT EXISTS (
      SELECT 1 FROM webhook_payloads p
      WHERE p.receipt_id = coalesce(r.main_id, r.id) AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
  )

-- name: fsck_state
SELECT key, receipt, detail FROM (
SELECT r.id AS key, r.id AS receipt, CASE
    WHEN r.status NOT IN ('received', 'processing', 'processed', 'retrying', 'failed', 'ignored') THEN 'unknown status ' || r.status
    WHEN r.attempts < 0 OR r.crashes < 0 OR r.replays < 0 OR r.lease < 0 THEN 'negative counter'
    WHEN (r.status = 'processed') <> (r.processed_at IS NOT NULL) THEN r.status || CASE WHEN r.processed_at IS NULL THEN ' without' ELSE ' with' END || ' processed_at'
    WHEN (r.status = 'failed') <> (r.failed_at IS NOT NULL) THEN r.status || CASE WHEN r.failed_at IS NULL THEN ' without' ELSE ' with' END || ' failed_at'
    WHEN r.status = 'processing' AND r.attempts = 0 THEN 'processing without an attempt'
    WHEN r.status <> 'processing' AND r.lease_until IS NOT NULL THEN r.status || ' with a lease'
    WHEN r.status = 'received' AND r.attempts > 0 THEN 'received with attempts'
    WHEN r.status IN ('processed', 'failed', 'ignored') AND r.next_attempt_at IS NOT NULL THEN r.status || ' with a next attempt'
END AS detail
{> fsck_receipts}
) AS states WHERE detail IS NOT NULL

-- name: fsck_lease_missing
SELECT r.id AS key, r.id AS receipt, 'processing by ' || coalesce(r.worker, 'the receiver') AS detail
{> fsck_receipts}
  AND r.status = 'processing' AND r.lease_until IS NULL

-- name: fsck_lease_expired
SELECT r.id AS key, r.id AS receipt, 'lease of ' || coalesce(r.worker, 'the receiver') || ' expired at ' || to_char(r.lease_until AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS detail
{> fsck_receipts}
  AND r.status = 'processing' AND r.lease_until < now() - interval '10 minutes'
  AND EXISTS (
      SELECT 1 FROM webhook_live_handlers l
      WHERE l.consumer = r.consumer AND l.source = r.source AND (r.type LIKE l.matcher OR r.type LIKE l.matcher || '.%')
  )

-- name: fsck_overtaken
-- An event that has been due for an hour, although a later event of the same kind was leased.
SELECT r.id AS key, r.id AS receipt, r.status || ', due since ' || to_char(coalesce(r.next_attempt_at, r.received_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS detail
{> fsck_receipts}
  AND r.status IN ('received', 'retrying') AND NOT r.is_inline AND r.serial_key IS NULL AND r.unhandled_at IS NULL AND r.crashes = 0
  AND coalesce(r.next_attempt_at, r.received_at) < now() - interval '1 hour'
  AND NOT EXISTS (SELECT 1 FROM webhook_pauses p WHERE p.source = r.source OR p.consumer = r.consumer)
  AND EXISTS (
      SELECT 1 FROM (
          SELECT * FROM webhook_receipts ORDER BY received_at DESC, id DESC LIMIT 1000
      ) n
      WHERE n.consumer = r.consumer AND n.source = r.source AND n.tenant = r.tenant AND n.type = r.type
        AND n.attempts > 0 AND NOT n.is_inline AND n.serial_key IS NULL AND n.crashes = 0
        AND n.received_at > coalesce(r.next_attempt_at, r.received_at) + interval '1 hour'
  )

-- name: fsck_attempts
-- Each attempt number has one row, and one more for each replay.
SELECT r.id AS key, r.id AS receipt, a.detail
FROM webhook_receipts r CROSS JOIN LATERAL (
    SELECT 'attempt ' || number || ' has ' || count(*) || ' rows' AS detail FROM webhook_past_attempts
    WHERE receipt_id = r.id GROUP BY number HAVING count(*) > r.replays + 1
    UNION ALL
    SELECT 'attempt ' || max(number) || ' of ' || r.attempts FROM webhook_past_attempts
    WHERE receipt_id = r.id AND r.replays = 0 HAVING max(number) > r.attempts
) a
WHERE r.id > CAST(:after AS bigint) AND r.id <= CAST(:last AS bigint)
  AND r.source NOT IN (SELECT source FROM webhook_moves WHERE phase <> 'here')
  AND r.source = :source                                       --? source
  AND r.received_at >= :since                                  --? since

-- name: fsck_unique
-- Each row is looked up by the unique index, which must find this row and no other.
SELECT key, receipt, CASE WHEN number = 0 THEN 'the unique index does not have this row' ELSE number || ' receipts of one event' END AS detail
FROM (
SELECT r.id AS key, r.id AS receipt, (
    SELECT count(*) FROM webhook_receipts o
    WHERE o.source = r.source AND o.event_id = r.event_id AND o.tenant = r.tenant AND o.consumer = r.consumer
) AS number
{> fsck_receipts}
) AS lookups WHERE number <> 1

-- name: fsck_copy
SELECT r.id AS key, r.id AS receipt, CASE
    WHEN r.main_id IS NULL THEN 'consumer ' || r.consumer || ' without main_id'
    ELSE 'main_id ' || r.main_id || ' is not a receipt of the same event'
END AS detail
{> fsck_receipts}
  AND ((r.main_id IS NULL) <> (r.consumer = 'main') OR r.main_id IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM webhook_receipts m
      WHERE m.id = r.main_id AND m.main_id IS NULL AND m.source = r.source AND m.event_id = r.event_id AND m.tenant = r.tenant
        AND m.received_at = r.received_at
  ))

-- name: fsck_replayed
SELECT r.id AS key, r.id AS receipt, r.replays AS number
{> fsck_receipts}
  AND r.replays > 0

-- name: fsck_audited_replays
-- How often the audit log names each receipt, for one page of the log.
SELECT a.id, CAST(e.value AS bigint) AS receipt
FROM (
    SELECT id, detail FROM webhook_audit
    WHERE id > CAST(:after AS bigint) AND action IN ('replay', 'replay_batch') ORDER BY id LIMIT :limit
) a, json_array_elements_text(a.detail::json -> 'receipts') AS e (value)

-- name: fsck_payload_orphan
-- A payload is found by the receipt and the day on which it arrived.
SELECT p.receipt_id AS key, p.receipt_id AS receipt, 'payload of ' || p.day AS detail
FROM webhook_payloads p
WHERE p.receipt_id > CAST(:after AS bigint) AND p.receipt_id <= CAST(:last AS bigint)
  AND NOT EXISTS (SELECT 1 FROM webhook_moves WHERE phase NOT IN ('here', 'left'))
  AND NOT EXISTS (
      SELECT 1 FROM webhook_receipts r
      WHERE r.id = p.receipt_id AND r.main_id IS NULL AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
  )

-- name: fsck_payload_object
SELECT p.receipt_id AS key, p.receipt_id AS receipt, p.object AS detail
FROM webhook_payloads p
WHERE p.receipt_id > CAST(:after AS bigint) AND p.receipt_id <= CAST(:last AS bigint) AND p.object IS NOT NULL
  AND NOT EXISTS (
      SELECT 1 FROM webhook_payload_objects o
      WHERE o.address = p.object AND o.receipt_id = p.receipt_id AND o.day = p.day AND NOT o.is_released
  )

-- name: fsck_bodies
-- Payloads whose bytes do not simply have the recorded SHA-256: the process compares them.
SELECT r.id, r.source, r.tenant, r.event_id, r.provider, r.fingerprint, p.body, p.headers, p.key_id, p.object
FROM webhook_receipts r
JOIN webhook_payloads p ON p.receipt_id = r.id AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
WHERE r.id > CAST(:after AS bigint) AND r.id <= CAST(:last AS bigint)
  AND r.source NOT IN (SELECT source FROM webhook_moves WHERE phase <> 'here')
  AND r.source = :source                                       --? source
  AND r.received_at >= :since                                  --? since
  AND (p.key_id IS NOT NULL OR p.object IS NOT NULL OR sha256(p.body) <> r.fingerprint)

-- name: fsck_attempt_orphan
SELECT a.id AS key, a.receipt_id AS receipt, 'attempt ' || a.number AS detail
FROM webhook_past_attempts a
WHERE a.id > CAST(:after AS bigint) AND a.id <= CAST(:last AS bigint)
  AND NOT EXISTS (SELECT 1 FROM webhook_moves WHERE phase NOT IN ('here', 'left'))
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts r WHERE r.id = a.receipt_id)

-- name: fsck_key_orphan
SELECT k.receipt_id AS key, k.receipt_id AS receipt, 'key of ' || k.source AS detail
FROM webhook_keys k
WHERE k.receipt_id > CAST(:after AS bigint) AND k.receipt_id <= CAST(:last AS bigint)
  AND NOT EXISTS (SELECT 1 FROM webhook_moves WHERE phase NOT IN ('here', 'left'))
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts r WHERE r.id = k.receipt_id)

-- name: fsck_noop_orphan
SELECT n.id AS key, n.receipt_id AS receipt, n.reason || ' ' || n.key AS detail
FROM webhook_noops n
WHERE n.id > CAST(:after AS bigint) AND n.id <= CAST(:last AS bigint)
  AND NOT EXISTS (SELECT 1 FROM webhook_moves WHERE phase NOT IN ('here', 'left'))
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts r WHERE r.id = n.receipt_id)

-- name: fsck_flag
SELECT d.id AS key, d.receipt_id AS receipt, CASE WHEN d.same_body THEN 'another body, not flagged' ELSE 'the same body, flagged' END AS detail
FROM webhook_deliveries d JOIN webhook_receipts r ON r.id = d.receipt_id
WHERE d.id > CAST(:after AS bigint) AND d.id <= CAST(:last AS bigint) AND d.same_body <> (d.fingerprint = r.fingerprint)

-- name: fsck_effect_state
SELECT key, receipt, detail FROM (
SELECT e.id AS key, e.receipt_id AS receipt, 'effect ' || e.key || ': ' || CASE
    WHEN e.status NOT IN ('waiting', 'performing', 'retrying', 'done', 'failed') THEN 'unknown status ' || e.status
    WHEN e.attempts < 0 OR e.crashes < 0 OR e.replays < 0 OR e.lease < 0 THEN 'negative counter'
    WHEN (e.status = 'done') <> (e.done_at IS NOT NULL) THEN e.status || CASE WHEN e.done_at IS NULL THEN ' without' ELSE ' with' END || ' done_at'
    WHEN (e.status = 'performing') <> (e.lease_until IS NOT NULL) THEN e.status || CASE WHEN e.lease_until IS NULL THEN ' without' ELSE ' with' END || ' a lease'
    WHEN e.status = 'done' AND e.kind <> 'once' AND e.attempts = 0 THEN 'done without an attempt'
END AS detail
{> fsck_effects}
) AS states WHERE detail IS NOT NULL

-- name: fsck_effect_expired
SELECT e.id AS key, e.receipt_id AS receipt, 'effect ' || e.key || ': lease of ' || coalesce(e.worker, '?') || ' expired' AS detail
{> fsck_effects}
  AND e.status = 'performing' AND e.lease_until < now() - interval '10 minutes'
  AND EXISTS (SELECT 1 FROM webhook_workers w WHERE w.seen_at > now() - interval '60 seconds')

-- name: fsck_effect_unprocessed
-- Effects commit with the processed status. After a replay, the effects of earlier runs stay.
SELECT e.id AS key, e.receipt_id AS receipt, 'effect ' || e.key || ' of a receipt that is ' || (SELECT r.status FROM webhook_receipts r WHERE r.id = e.receipt_id) AS detail
{> fsck_effects}
  AND EXISTS (
      SELECT 1 FROM webhook_receipts r
      WHERE r.id = e.receipt_id AND r.status <> 'processed'
        AND (r.replays = 0 OR e.created_at > r.replayed_at + interval '1 minute')
  )

-- name: fsck_effect_orphan
-- A deleted receipt of `main` has raised `deleted_up_to`. With other consumers, nothing shows that a copy was deleted.
SELECT e.id AS key, e.receipt_id AS receipt, 'effect ' || e.key || ' of a receipt that was never deleted' AS detail
{> fsck_effects}
  AND e.receipt_id > (SELECT max(deleted_up_to) FROM webhook_fast_path)
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts r WHERE r.id = e.receipt_id)
  AND NOT EXISTS (SELECT 1 FROM webhook_consumers) AND NOT EXISTS (SELECT 1 FROM webhook_receipts c WHERE c.main_id IS NOT NULL)

-- name: fsck_effect_unique
SELECT key, receipt, CASE WHEN number = 0 THEN 'the unique index does not have this row' ELSE number || ' effects with one key' END AS detail
FROM (
SELECT e.id AS key, e.receipt_id AS receipt, (SELECT count(*) FROM webhook_effects o WHERE o.scope = e.scope AND o.key = e.key) AS number
{> fsck_effects}
) AS lookups WHERE number <> 1

-- name: fsck_entity
SELECT n.scope || ' ' || n.kind || ' ' || n.id AS key, n.receipt_id AS receipt, n.kind || ' ' || n.id || ' names event ' || n.event_id AS detail
FROM webhook_entities n JOIN webhook_receipts r ON r.id = n.receipt_id
WHERE (n.scope, n.kind, n.id) > (CAST(:after_scope AS text), CAST(:after_kind AS text), CAST(:after AS text))
  AND (n.scope, n.kind, n.id) <= (CAST(:last_scope AS text), CAST(:last_kind AS text), CAST(:last AS text))
  AND r.source NOT IN (SELECT source FROM webhook_moves WHERE phase <> 'here')
  AND (r.event_id <> n.event_id OR r.status <> 'processed' AND (r.replays = 0 OR n.updated_at > r.replayed_at + interval '1 minute'))

-- name: fsck_serial
SELECT min(r.id) AS key, min(r.id) AS receipt, count(*) || ' receipts of key ' || r.serial_key AS detail
FROM webhook_receipts r WHERE r.status = 'processing' AND r.serial_key IS NOT NULL
GROUP BY r.consumer, r.source, r.serial_key HAVING count(*) > 1

-- name: fsck_rejections
SELECT source AS key, CAST(NULL AS bigint) AS receipt, source || ': ' || count(*) || ' samples, the largest with ' || max(octet_length(body)) || ' bytes' AS detail
FROM webhook_rejections GROUP BY source HAVING count(*) > :most OR max(octet_length(body)) > 65536

-- name: fsck_partitions
-- Days whose payloads no statement sees. The pruner marks a day before it detaches it.
SELECT c.relname AS key, CAST(NULL AS bigint) AS receipt, c.relname || ' is not attached' AS detail
FROM pg_class c LEFT JOIN pg_inherits i ON i.inhrelid = c.oid AND NOT i.inhdetachpending
WHERE c.relkind = 'r' AND c.relname ~ '^webhook_payloads_[0-9]{8}$' AND pg_table_is_visible(c.oid) AND i.inhrelid IS NULL
  AND obj_description(c.oid, 'pg_class') IS DISTINCT FROM 'oncehook: to be dropped'

-- name: fsck_objects
-- Tables, views, indexes, triggers, routines, types and constraints, and whether each is in force.
SELECT c.relname AS name, coalesce(i.indisvalid AND i.indisready, true) AS is_valid
FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
WHERE pg_table_is_visible(c.oid) AND left(c.relname, 8) = 'webhook_' AND NOT c.relispartition
UNION ALL
SELECT p.proname, true FROM pg_proc p WHERE pg_function_is_visible(p.oid) AND left(p.proname, 8) = 'webhook_'
UNION ALL
SELECT t.tgname, t.tgenabled <> 'D' FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE pg_table_is_visible(c.oid) AND left(t.tgname, 8) = 'webhook_'
UNION ALL
SELECT t.typname, EXISTS (SELECT 1 FROM pg_constraint k WHERE k.contypid = t.oid AND k.contype = 'c' AND k.convalidated) FROM pg_type t
WHERE pg_type_is_visible(t.oid) AND t.typtype = 'd' AND left(t.typname, 8) = 'webhook_'

-- name: fsck_columns
SELECT c.relname AS name, a.attname AS part FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE pg_table_is_visible(c.oid) AND left(c.relname, 8) = 'webhook_' AND NOT c.relispartition AND c.relkind IN ('r', 'p', 'v')
  AND a.attnum > 0 AND NOT a.attisdropped
