-- Every statement only reads, and reads one window of a table: the rows with a key above :after and up to :last. The columns
-- of a check are `key`, which names the row, `receipt`, and `detail`.

-- name: fsck_window_receipts
SELECT max(id) AS last, count(*) AS rows, count(*) FILTER (
    WHERE true
      AND source = :source                                     --? source
      AND received_at >= :since                                --? since
) AS number
FROM (SELECT id, source, received_at FROM webhook_receipts WHERE id > :after ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_payloads
SELECT max(receipt_id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT receipt_id FROM webhook_payloads WHERE receipt_id > :after ORDER BY receipt_id LIMIT :limit) AS page

-- name: fsck_window_attempts
SELECT max(id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT id FROM webhook_past_attempts WHERE id > :after ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_keys
SELECT max(receipt_id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT receipt_id FROM webhook_keys WHERE receipt_id > :after ORDER BY receipt_id LIMIT :limit) AS page

-- name: fsck_window_noops
SELECT max(id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT id FROM webhook_noops WHERE id > :after ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_deliveries
SELECT max(id) AS last, count(*) AS rows, count(*) AS number
FROM (SELECT id FROM webhook_deliveries WHERE id > :after ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_effects
SELECT max(id) AS last, count(*) AS rows, count(*) FILTER (
    WHERE true
      AND source = :source                                     --? source
      AND created_at >= :since                                 --? since
) AS number
FROM (SELECT id, source, created_at FROM webhook_effects WHERE id > :after ORDER BY id LIMIT :limit) AS page

-- name: fsck_window_entities
SELECT scope AS last_scope, kind AS last_kind, id AS last, count(*) OVER () AS rows, count(*) OVER () AS number
FROM (
    SELECT scope, kind, id FROM webhook_entities
    WHERE (scope, kind, id) > (:after_scope, :after_kind, :after)
    ORDER BY scope, kind, id LIMIT :limit
) AS page
ORDER BY scope DESC, kind DESC, id DESC LIMIT 1

-- name: fsck_receipts
-- The receipts of a window.  A fragment.
FROM webhook_receipts r
WHERE r.id > :after AND r.id <= :last
  AND r.source = :source                                       --? source
  AND r.received_at >= :since                                  --? since

-- name: fsck_effects
-- The effects of a window. A fragment.
FROM webhook_effects e
WHERE e.id > :after AND e.id <= :last
  AND e.source = :source                                       --? source
  AND e.created_at >= :since                                   --? since

-- name: fsck_payload_missing
-- An erasure deletes payloads of any status. Events that arrived before the last one are left out.
SELECT r.id AS key, r.id AS receipt, r.status || ' without a payload' AS detail
{> fsck_receipts}
  AND r.status NOT IN ('processed', 'ignored')
  AND r.received_at > coalesce((SELECT max(at) FROM webhook_audit WHERE action = 'forget'), '')
  AND NOT EXISTS (
      SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(r.main_id, r.id)
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
SELECT r.id AS key, r.id AS receipt, 'lease of ' || coalesce(r.worker, 'the receiver') || ' expired at ' || r.lease_until AS detail
{> fsck_receipts}
  AND r.status = 'processing' AND r.lease_until < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-10 minutes')
  AND EXISTS (
      SELECT 1 FROM webhook_live_handlers l
      WHERE l.consumer = r.consumer AND l.source = r.source AND (r.type GLOB l.matcher OR r.type GLOB l.matcher || '.*')
  )

-- name: fsck_overtaken
-- An event that has been due for an hour, although a later event of the same kind was leased.
SELECT r.id AS key, r.id AS receipt, r.status || ', due since ' || coalesce(r.next_attempt_at, r.received_at) AS detail
{> fsck_receipts}
  AND r.status IN ('received', 'retrying') AND NOT r.is_inline AND r.serial_key IS NULL AND r.unhandled_at IS NULL AND r.crashes = 0
  AND coalesce(r.next_attempt_at, r.received_at) < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-1 hour')
  AND NOT EXISTS (SELECT 1 FROM webhook_pauses p WHERE p.source = r.source OR p.consumer = r.consumer)
  AND EXISTS (
      SELECT 1 FROM (
          SELECT * FROM webhook_receipts ORDER BY received_at DESC, id DESC LIMIT 1000
      ) n
      WHERE n.consumer = r.consumer AND n.source = r.source AND n.tenant = r.tenant AND n.type = r.type
        AND n.attempts > 0 AND NOT n.is_inline AND n.serial_key IS NULL AND n.crashes = 0
        AND julianday(n.received_at) > julianday(coalesce(r.next_attempt_at, r.received_at)) + 1.0 / 24
  )

-- name: fsck_attempts
-- Each attempt number has one row, and one more for each replay.
SELECT r.id AS key, r.id AS receipt, 'attempt ' || a.number || ' has ' || count(*) || ' rows' AS detail
FROM webhook_receipts r JOIN webhook_past_attempts a ON a.receipt_id = r.id
WHERE r.id > :after AND r.id <= :last
  AND r.source = :source                                       --? source
  AND r.received_at >= :since                                  --? since
GROUP BY r.id, a.number HAVING count(*) > r.replays + 1
UNION ALL
SELECT r.id, r.id, 'attempt ' || max(a.number) || ' of ' || r.attempts
FROM webhook_receipts r JOIN webhook_past_attempts a ON a.receipt_id = r.id
WHERE r.id > :after AND r.id <= :last AND r.replays = 0
  AND r.source = :source                                       --? source
  AND r.received_at >= :since                                  --? since
GROUP BY r.id HAVING max(a.number) > r.attempts

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
SELECT a.id, e.value AS receipt
FROM (
    SELECT id, detail FROM webhook_audit
    WHERE id > :after AND action IN ('replay', 'replay_batch') ORDER BY id LIMIT :limit
) a, json_each(a.detail, '$.receipts') AS e

-- name: fsck_payload_orphan
-- A payload is found by the receipt and the day on which it arrived.
SELECT p.receipt_id AS key, p.receipt_id AS receipt, 'payload' AS detail
FROM webhook_payloads p
WHERE p.receipt_id > :after AND p.receipt_id <= :last
  AND NOT EXISTS (
      SELECT 1 FROM webhook_receipts r
      WHERE r.id = p.receipt_id AND r.main_id IS NULL
  )

-- name: fsck_payload_object
SELECT p.receipt_id AS key, p.receipt_id AS receipt, p.object AS detail
FROM webhook_payloads p
WHERE p.receipt_id > :after AND p.receipt_id <= :last AND p.object IS NOT NULL
  AND NOT EXISTS (
      SELECT 1 FROM webhook_payload_objects o
      WHERE o.address = p.object AND o.receipt_id = p.receipt_id AND NOT o.is_released
  )

-- name: fsck_bodies
-- SQLite has no SHA-256: the process compares all bodies.
SELECT r.id, r.source, r.tenant, r.event_id, r.provider, CAST(r.fingerprint AS BLOB) AS fingerprint, CAST(p.body AS BLOB) AS body, p.headers,
       p.key_id, p.object
FROM webhook_receipts r
JOIN webhook_payloads p ON p.receipt_id = r.id
WHERE r.id > :after AND r.id <= :last
  AND r.source = :source                                       --? source
  AND r.received_at >= :since                                  --? since

-- name: fsck_attempt_orphan
SELECT a.id AS key, a.receipt_id AS receipt, 'attempt ' || a.number AS detail
FROM webhook_past_attempts a
WHERE a.id > :after AND a.id <= :last
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts r WHERE r.id = a.receipt_id)

-- name: fsck_key_orphan
SELECT k.receipt_id AS key, k.receipt_id AS receipt, 'key of ' || k.source AS detail
FROM webhook_keys k
WHERE k.receipt_id > :after AND k.receipt_id <= :last
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts r WHERE r.id = k.receipt_id)

-- name: fsck_noop_orphan
SELECT n.id AS key, n.receipt_id AS receipt, n.reason || ' ' || n.key AS detail
FROM webhook_noops n
WHERE n.id > :after AND n.id <= :last
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts r WHERE r.id = n.receipt_id)

-- name: fsck_flag
SELECT d.id AS key, d.receipt_id AS receipt, CASE WHEN d.same_body THEN 'another body, not flagged' ELSE 'the same body, flagged' END AS detail
FROM webhook_deliveries d JOIN webhook_receipts r ON r.id = d.receipt_id
WHERE d.id > :after AND d.id <= :last AND d.same_body <> (d.fingerprint = r.fingerprint)

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
  AND e.status = 'performing' AND e.lease_until < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-10 minutes')
  AND EXISTS (SELECT 1 FROM webhook_workers w WHERE w.seen_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-60 seconds'))

-- name: fsck_effect_unprocessed
-- Effects commit with the processed status. After a replay, the effects of earlier runs stay.
SELECT e.id AS key, e.receipt_id AS receipt, 'effect ' || e.key || ' of a receipt that is ' || (SELECT r.status FROM webhook_receipts r WHERE r.id = e.receipt_id) AS detail
{> fsck_effects}
  AND EXISTS (
      SELECT 1 FROM webhook_receipts r
      WHERE r.id = e.receipt_id AND r.status <> 'processed'
        AND (r.replays = 0 OR julianday(e.created_at) > julianday(r.replayed_at) + 1.0 / 1440)
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
WHERE (n.scope, n.kind, n.id) > (:after_scope, :after_kind, :after)
  AND (n.scope, n.kind, n.id) <= (:last_scope, :last_kind, :last)
  AND (r.event_id <> n.event_id OR r.status <> 'processed' AND (r.replays = 0 OR julianday(n.updated_at) > julianday(r.replayed_at) + 1.0 / 1440))

-- name: fsck_serial
SELECT min(r.id) AS key, min(r.id) AS receipt, count(*) || ' receipts of key ' || r.serial_key AS detail
FROM webhook_receipts r WHERE r.status = 'processing' AND r.serial_key IS NOT NULL
GROUP BY r.consumer, r.source, r.serial_key HAVING count(*) > 1

-- name: fsck_rejections
SELECT source AS key, NULL AS receipt, source || ': ' || count(*) || ' samples, the largest with ' || max(length(body)) || ' bytes' AS detail
FROM webhook_rejections GROUP BY source HAVING count(*) > :most OR max(length(body)) > 65536

-- name: fsck_partitions
-- Payloads have no partitions here.
SELECT NULL AS key, NULL AS receipt, NULL AS detail WHERE 0

-- name: fsck_objects
-- Tables, views, indexes and triggers. SQLite has no invalid index.
SELECT name, 1 AS is_valid FROM sqlite_master WHERE substr(name, 1, 8) = 'webhook_'

-- name: fsck_columns
SELECT m.name AS name, c.name AS part FROM sqlite_master m JOIN pragma_table_info(m.name) c
WHERE m.type IN ('table', 'view') AND substr(m.name, 1, 8) = 'webhook_'
