-- name: shard_here
SELECT name, number FROM webhook_shards WHERE is_here

-- name: lock_shards
LOCK TABLE webhook_shards IN EXCLUSIVE MODE

-- name: add_shard
INSERT INTO webhook_shards (name, number, is_here) VALUES (:name, CAST(:number AS integer), :is_here)
ON CONFLICT (name) DO NOTHING

-- name: shard_number
-- The number of a shard, and the next free one.
SELECT max(number) FILTER (WHERE name = :name) AS number, coalesce(max(number), 0) + 1 AS free FROM webhook_shards

-- name: has_events
SELECT EXISTS (SELECT 1 FROM webhook_receipts) OR (SELECT is_called FROM webhook_receipt_ids) AS has_events

-- name: start_ids
-- Begins all ids of a shard after `first`. Those of attempts, duplicates and no-ops are local: a move gives new ones.
SELECT setval('webhook_receipt_ids', :first), setval(pg_get_serial_sequence('webhook_effects', 'id'), :first),
       setval(pg_get_serial_sequence('webhook_audit', 'id'), :first), setval(pg_get_serial_sequence('webhook_incidents', 'id'), :first)

-- name: routes
SELECT source, shard, number FROM webhook_routes ORDER BY source

-- name: put_route
INSERT INTO webhook_routes (source, shard, actor) VALUES (:source, :shard, :actor)
ON CONFLICT (source) DO UPDATE
SET shard = excluded.shard, actor = excluded.actor, moved_at = now(), number = webhook_routes.number + 1
WHERE webhook_routes.number = CAST(:number AS bigint)
RETURNING source

-- name: shard_figures
SELECT coalesce(sum(number), 0)::bigint AS receipts, coalesce(max(lag), 0)::double precision AS lag
FROM (
    SELECT count(*) AS number, extract(epoch FROM now() - min(coalesce(next_attempt_at, received_at))
           FILTER (WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NULL
                   AND coalesce(next_attempt_at, received_at) <= now())) AS lag
    FROM webhook_receipts WHERE source <> ALL (ARRAY(SELECT m.source FROM webhook_moves m WHERE m.phase IN ('left', 'arriving')))
) counted

-- name: move_of
SELECT source, phase, from_shard, to_shard, cursors, has_paused, frozen_at FROM webhook_moves WHERE source = :source

-- name: moves
SELECT source, phase, from_shard, to_shard, cursors, has_paused, frozen_at FROM webhook_moves ORDER BY source

-- name: put_move
INSERT INTO webhook_moves (source, phase, from_shard, to_shard, has_paused, actor)
VALUES (:source, :phase, :from_shard, :to_shard, :has_paused, :actor)
ON CONFLICT (source) DO UPDATE
SET phase = excluded.phase, from_shard = excluded.from_shard, to_shard = excluded.to_shard, cursors = '{}',
    has_paused = excluded.has_paused, started_at = now(), frozen_at = NULL, left_at = NULL, actor = excluded.actor

-- name: lock_move
-- A phase changes only while no transaction writes rows of the source.
SELECT pg_advisory_xact_lock(webhook_move_lock(:source))

-- name: hold_move
-- The phase cannot change before the end of the transaction.
SELECT m.phase FROM webhook_moves m WHERE m.source = :source AND m.phase = ANY(CAST(:phases AS text)::text[]) FOR SHARE

-- name: set_phase
UPDATE webhook_moves
SET phase = :phase, frozen_at = CASE WHEN :phase = 'frozen' THEN now() ELSE frozen_at END,
    left_at = CASE WHEN :phase = 'left' THEN now() END, has_paused = :has_paused
WHERE source = :source

-- name: delete_move
DELETE FROM webhook_moves WHERE source = :source AND phase = 'arriving'
RETURNING source

-- name: put_cursors
UPDATE webhook_moves SET cursors = :cursors WHERE source = :source

-- name: pause_moved
INSERT INTO webhook_pauses (source, actor, reason) VALUES (:source, :actor, :reason)
ON CONFLICT (source, consumer) DO NOTHING
RETURNING source

-- name: copy_pause
INSERT INTO webhook_pauses (source, actor, reason, paused_at, ends_at)
VALUES (:source, :actor, :reason, CAST(:paused_at AS text)::timestamptz, CAST(:ends_at AS text)::timestamptz)
ON CONFLICT (source, consumer) DO NOTHING

-- name: unpause_moved
DELETE FROM webhook_pauses WHERE source = :source AND consumer = ''

-- name: source_pause
SELECT source, consumer, paused_at, actor, reason, ends_at FROM webhook_pauses WHERE source = :source AND consumer = ''

-- name: keys_to_move
SELECT coalesce(json_agg(t), '[]')::text AS rows FROM webhook_encryption_keys t

-- name: write_moved_keys
INSERT INTO webhook_encryption_keys
SELECT t.* FROM jsonb_populate_recordset(NULL::webhook_encryption_keys, CAST(:rows AS jsonb)) t
ON CONFLICT (key_id) DO NOTHING

-- name: watch_source
SELECT webhook_watch(:source, :logs)

-- name: unwatch_source
SELECT webhook_unwatch(:source, :guards)

-- name: move_session
-- The settings of a transaction that copies. Texts of values must not depend on the server's settings. Rows are found by
-- arrays of ids: without statistics, the planner would read the whole table for each array.
SELECT set_config('oncehook.mover', :source, true), set_config('TimeZone', 'UTC', true), set_config('bytea_output', 'hex', true),
       set_config('lock_timeout', :lock_timeout, true), set_config('statement_timeout', '0', true),
       set_config('enable_seqscan', 'off', true), set_config('jit', 'off', true)

-- name: last_moved
SELECT coalesce((SELECT max(id) FROM webhook_receipts WHERE source = :source), 0) AS receipts,
       coalesce((SELECT max(id) FROM webhook_effects WHERE source = :source), 0) AS effects

-- name: receipts_to_move
-- IS NOT DISTINCT FROM uses no index of the source, here and below: the receipts are found by their ids.
SELECT r.id, coalesce(octet_length(p.body), 0) AS size FROM webhook_receipts r
LEFT JOIN webhook_payloads p ON p.receipt_id = r.id AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
WHERE r.source IS NOT DISTINCT FROM :source AND r.id > :after AND r.id <= :until ORDER BY r.id LIMIT :limit

-- name: read_moved
SELECT json_build_object(
    'receipts', (SELECT json_agg(t) FROM webhook_receipts t WHERE t.id = ANY (o.ids)),
    'payloads', (SELECT json_agg(t) FROM webhook_payloads t WHERE t.receipt_id = ANY (o.ids)),
    'objects', (SELECT json_agg(t) FROM webhook_payload_objects t WHERE t.receipt_id = ANY (o.ids)),
    'keys', (SELECT json_agg(t) FROM webhook_keys t WHERE t.receipt_id = ANY (o.ids)),
    'attempts', (SELECT json_agg(t ORDER BY t.id) FROM webhook_past_attempts t WHERE t.receipt_id = ANY (o.ids)),
    'deliveries', (SELECT json_agg(t ORDER BY t.id) FROM webhook_deliveries t WHERE t.receipt_id = ANY (o.ids)),
    'noops', (SELECT json_agg(t ORDER BY t.id) FROM webhook_noops t WHERE t.receipt_id = ANY (o.ids))
)::text AS rows, ARRAY(SELECT DISTINCT p.day FROM webhook_payloads p WHERE p.receipt_id = ANY (o.ids)) AS days
FROM (SELECT ARRAY(SELECT r.id FROM webhook_receipts r WHERE r.id = ANY(CAST(:ids AS text)::bigint[]) AND r.source IS NOT DISTINCT FROM :source) AS ids) o

-- name: delete_moved
-- The objects of the payload store stay: the other shard has their rows.
WITH gone AS MATERIALIZED (
    SELECT ARRAY(SELECT r.id FROM webhook_receipts r WHERE r.id = ANY(CAST(:ids AS text)::bigint[]) AND r.source IS NOT DISTINCT FROM :source) AS ids
), payloads AS (DELETE FROM webhook_payloads WHERE receipt_id = ANY ((SELECT ids FROM gone)::bigint[])),
objects AS (DELETE FROM webhook_payload_objects WHERE receipt_id = ANY ((SELECT ids FROM gone)::bigint[])),
keys AS (DELETE FROM webhook_keys WHERE receipt_id = ANY ((SELECT ids FROM gone)::bigint[])),
attempts AS (DELETE FROM webhook_past_attempts WHERE receipt_id = ANY ((SELECT ids FROM gone)::bigint[])),
deliveries AS (DELETE FROM webhook_deliveries WHERE receipt_id = ANY ((SELECT ids FROM gone)::bigint[])),
noops AS (DELETE FROM webhook_noops WHERE receipt_id = ANY ((SELECT ids FROM gone)::bigint[]))
DELETE FROM webhook_receipts WHERE id = ANY ((SELECT ids FROM gone)::bigint[])
RETURNING id

-- name: write_moved
WITH input AS MATERIALIZED (SELECT CAST(:rows AS jsonb) AS rows), receipts AS (
    INSERT INTO webhook_receipts SELECT t.* FROM input, jsonb_populate_recordset(NULL::webhook_receipts, nullif(rows -> 'receipts', 'null')) t
), payloads AS (
    INSERT INTO webhook_payloads SELECT t.* FROM input, jsonb_populate_recordset(NULL::webhook_payloads, nullif(rows -> 'payloads', 'null')) t
), objects AS (
    INSERT INTO webhook_payload_objects
    SELECT t.* FROM input, jsonb_populate_recordset(NULL::webhook_payload_objects, nullif(rows -> 'objects', 'null')) t
), keys AS (
    INSERT INTO webhook_keys SELECT t.* FROM input, jsonb_populate_recordset(NULL::webhook_keys, nullif(rows -> 'keys', 'null')) t
), attempts AS (
    INSERT INTO webhook_past_attempts OVERRIDING SYSTEM VALUE
    SELECT t.* FROM input, jsonb_array_elements(nullif(rows -> 'attempts', 'null')) WITH ORDINALITY AS e (row, number),
        jsonb_populate_record(NULL::webhook_past_attempts,
            e.row || jsonb_build_object('id', nextval(pg_get_serial_sequence('webhook_past_attempts', 'id')))) t
    ORDER BY e.number
), deliveries AS (
    INSERT INTO webhook_deliveries OVERRIDING SYSTEM VALUE
    SELECT t.* FROM input, jsonb_array_elements(nullif(rows -> 'deliveries', 'null')) WITH ORDINALITY AS e (row, number),
        jsonb_populate_record(NULL::webhook_deliveries,
            e.row || jsonb_build_object('id', nextval(pg_get_serial_sequence('webhook_deliveries', 'id')))) t
    ORDER BY e.number
)
INSERT INTO webhook_noops OVERRIDING SYSTEM VALUE
SELECT t.* FROM input, jsonb_array_elements(nullif(rows -> 'noops', 'null')) WITH ORDINALITY AS e (row, number),
    jsonb_populate_record(NULL::webhook_noops,
        e.row || jsonb_build_object('id', nextval(pg_get_serial_sequence('webhook_noops', 'id')))) t
ORDER BY e.number

-- name: digest_moved
-- A digest of each receipt with all its rows, except the ids that a move changes.
SELECT r.id, md5(concat_ws('|', r::text,
    (SELECT string_agg(md5(t::text), ',' ORDER BY t.day) FROM webhook_payloads t WHERE t.receipt_id = r.id),
    (SELECT string_agg(t::text, ',' ORDER BY t.address) FROM webhook_payload_objects t WHERE t.receipt_id = r.id),
    (SELECT string_agg(t::text, ',' ORDER BY t.key) FROM webhook_keys t WHERE t.receipt_id = r.id),
    (SELECT string_agg((to_jsonb(t) - 'id')::text, ',' ORDER BY t.id) FROM webhook_past_attempts t WHERE t.receipt_id = r.id),
    (SELECT string_agg((to_jsonb(t) - 'id')::text, ',' ORDER BY t.id) FROM webhook_deliveries t WHERE t.receipt_id = r.id),
    (SELECT string_agg((to_jsonb(t) - 'id')::text, ',' ORDER BY t.id) FROM webhook_noops t WHERE t.receipt_id = r.id)
)) AS digest
FROM webhook_receipts r WHERE r.id = ANY(CAST(:ids AS text)::bigint[]) AND r.source IS NOT DISTINCT FROM :source

-- name: effects_to_move
SELECT e.id FROM webhook_effects e WHERE e.source = :source AND e.id > :after AND e.id <= :until ORDER BY e.id LIMIT :limit

-- name: read_moved_effects
SELECT coalesce(json_agg(t ORDER BY t.id), '[]')::text AS rows FROM webhook_effects t
WHERE t.id = ANY(CAST(:ids AS text)::bigint[]) AND t.source = :source
  AND t.status IN ('done', 'failed') AND CAST(:finished AS boolean)  --? finished

-- name: delete_moved_effects
DELETE FROM webhook_effects WHERE id = ANY(CAST(:ids AS text)::bigint[]) AND source = :source

-- name: write_moved_effects
INSERT INTO webhook_effects OVERRIDING SYSTEM VALUE
SELECT t.* FROM jsonb_populate_recordset(NULL::webhook_effects, CAST(:rows AS jsonb)) t

-- name: digest_moved_effects
SELECT t.id, md5(t::text) AS digest FROM webhook_effects t
WHERE t.id = ANY(CAST(:ids AS text)::bigint[]) AND t.source = :source

-- name: of_moved_entity
-- Whether the entity `t` belongs to the source: by its scope, or by its newest event. A fragment.
(t.scope = :source OR t.scope > :source || '@' AND t.scope < :source || 'A' OR t.scope > :source || '/' AND t.scope < :source || '0'
 OR EXISTS (SELECT 1 FROM webhook_receipts r WHERE r.id = t.receipt_id AND r.source = :source))

-- name: entities_to_move
SELECT t.scope, t.kind, t.id FROM webhook_entities t
WHERE (t.scope, t.kind, t.id) > (:after_scope, :after_kind, :after_id) AND {> of_moved_entity}
ORDER BY t.scope, t.kind, t.id LIMIT :limit

-- name: read_moved_entities
SELECT coalesce(json_agg(t), '[]')::text AS rows
FROM webhook_entities t JOIN json_array_elements(CAST(:keys AS json)) AS k (key)
    ON t.scope = key ->> 0 AND t.kind = key ->> 1 AND t.id = key ->> 2
WHERE {> of_moved_entity}

-- name: delete_moved_entities
DELETE FROM webhook_entities t USING json_array_elements(CAST(:keys AS json)) AS k (key)
WHERE t.scope = key ->> 0 AND t.kind = key ->> 1 AND t.id = key ->> 2 AND {> of_moved_entity}

-- name: write_moved_entities
INSERT INTO webhook_entities SELECT t.* FROM jsonb_populate_recordset(NULL::webhook_entities, CAST(:rows AS jsonb)) t

-- name: move_changes
SELECT id, kind, key FROM webhook_move_changes WHERE source = :source ORDER BY id LIMIT :limit

-- name: delete_move_changes
DELETE FROM webhook_move_changes WHERE source = :source AND id = ANY(CAST(:ids AS text)::bigint[])

-- name: clear_move_changes
DELETE FROM webhook_move_changes WHERE source = :source

-- name: moved_work
SELECT (SELECT count(*) FROM webhook_receipts WHERE status = 'processing' AND source = :source) AS handlers,
       (SELECT count(*) FROM webhook_effects WHERE status = 'performing' AND source = :source) AS effects

-- name: moved_counts
SELECT (SELECT count(*) FROM webhook_receipts WHERE source = :source) AS receipts,
       (SELECT count(*) FROM webhook_keys WHERE source = :source) AS keys,
       (SELECT count(*) FROM webhook_effects WHERE source = :source) AS effects

-- name: shared_scopes
-- The scopes that effects of the source share with those of another source.
SELECT DISTINCT o.scope FROM webhook_effects o
WHERE o.source <> :source AND o.scope = ANY(ARRAY(SELECT json_array_elements_text(CAST(:scopes AS json))))
ORDER BY o.scope LIMIT 20

-- name: effect_scopes
SELECT DISTINCT scope FROM webhook_effects WHERE source = :source LIMIT 10000

-- name: leftover_receipts
SELECT r.id FROM webhook_receipts r WHERE r.source = :source
  AND r.status IN ('received', 'retrying', 'processing') AND CAST(:unfinished AS boolean)  --? unfinished
LIMIT :limit

-- name: leftover_effects
SELECT e.id FROM webhook_effects e WHERE e.source = :source
  AND e.status IN ('waiting', 'retrying', 'performing') AND CAST(:unfinished AS boolean)  --? unfinished
LIMIT :limit
