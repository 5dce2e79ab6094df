-- name: prunable
-- The receipts of an event are deleted together, when all of them are finished. Its payload is counted once.
SELECT r.source, count(*) FILTER (WHERE r.received_at < h.receipts) AS receipts,
       count(*) FILTER (WHERE r.main_id IS NULL AND EXISTS (
           SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = r.id AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
       )) AS payloads
FROM webhook_receipts r
JOIN json_to_recordset(CAST(:before AS json)) AS h (source text, receipts timestamptz, payloads timestamptz)
    ON h.source = r.source
WHERE r.status IN ('processed', 'ignored') AND r.received_at < greatest(h.receipts, h.payloads)
  AND NOT EXISTS (
      SELECT 1 FROM webhook_receipts c
      WHERE c.main_id = coalesce(r.main_id, r.id) AND c.status NOT IN ('processed', 'ignored')
  )
  AND NOT EXISTS (SELECT 1 FROM webhook_receipts m WHERE m.id = r.main_id AND m.status NOT IN ('processed', 'ignored'))
GROUP BY r.source ORDER BY r.source

-- name: old_receipts
-- Receipts of `main` whose event is finished for every consumer. The receipts of an event have the same received_at.
SELECT r.id, r.source, r.received_at, (r.received_at AT TIME ZONE 'UTC')::date AS day, EXISTS (
           SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = r.id AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
       ) AS has_payload
FROM webhook_receipts r
JOIN json_to_recordset(CAST(:before AS json)) AS h (source text, before timestamptz) ON h.source = r.source
WHERE r.status IN ('processed', 'ignored') AND r.received_at < h.before AND r.received_at < CAST(:latest AS timestamptz)
  AND (r.received_at, r.id) > (CAST(:after_time AS timestamptz), CAST(:after_receipt AS bigint))
  AND r.main_id IS NULL AND NOT EXISTS (
      SELECT 1 FROM webhook_receipts c WHERE c.main_id = r.id AND c.status NOT IN ('processed', 'ignored')
      OFFSET 0  -- keeps it a probe of the index for each row; as a join it could read all copies for each page
  )
ORDER BY r.received_at, r.id
LIMIT :limit

-- name: lock_old_receipts
-- Locks the receipts against a replay. Receipts are locked in ascending order, so there is no deadlock.
SELECT id, source, main_id FROM webhook_receipts
WHERE id = ANY(CAST(:receipts AS text)::bigint[]) AND status IN ('processed', 'ignored')
ORDER BY id FOR UPDATE SKIP LOCKED

-- name: copies
-- The receipts of other consumers. The receipts of `main` are locked, so no copy of them is added.
SELECT id, main_id FROM webhook_receipts WHERE main_id = ANY(CAST(:receipts AS text)::bigint[])

-- name: prune_payloads
DELETE FROM webhook_payloads WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[]) AND day = ANY(CAST(:days AS text)::date[])

-- name: release_objects
UPDATE webhook_payload_objects SET receipt_id = NULL, day = NULL, is_released = true
WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[])
RETURNING address

-- name: prune_deliveries
DELETE FROM webhook_deliveries WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[])

-- name: prune_keys
DELETE FROM webhook_keys WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[])

-- name: prune_attempts
DELETE FROM webhook_past_attempts WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[])

-- name: prune_receipts
DELETE FROM webhook_receipts WHERE id = ANY(CAST(:receipts AS text)::bigint[])

-- name: payload_days
SELECT c.oid::regclass::text AS name, to_date(right(c.relname, 8), 'YYYYMMDD') AS day, i.inhdetachpending AS is_pending,
       i.inhrelid IS NULL AS is_detached
FROM pg_class c
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relkind = 'r' AND c.relname ~ '^webhook_payloads_[0-9]{8}$' AND (
    i.inhparent = 'webhook_payloads'::regclass
    OR i.inhrelid IS NULL AND pg_table_is_visible(c.oid) AND obj_description(c.oid, 'pg_class') = 'oncehook: to be dropped'
)
ORDER BY day

-- name: day_is_needed
SELECT EXISTS (
    SELECT 1 FROM webhook_receipts r
    LEFT JOIN json_to_recordset(CAST(:before AS json)) AS h (source text, before timestamptz) ON h.source = r.source
    WHERE r.received_at >= CAST(:day AS date)::timestamp AT TIME ZONE 'UTC'
      AND r.received_at < (CAST(:day AS date) + 1)::timestamp AT TIME ZONE 'UTC'
      AND (h.source IS NULL OR r.status NOT IN ('processed', 'ignored') OR r.received_at >= h.before)
      AND EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(r.main_id, r.id) AND p.day = CAST(:day AS date))
)

-- name: detached_day_is_needed
-- The same after the day was detached. A replay or a backfill that had seen one of its payloads is committed by now.
SELECT EXISTS (
    SELECT 1 FROM webhook_receipts r
    LEFT JOIN json_to_recordset(CAST(:before AS json)) AS h (source text, before timestamptz) ON h.source = r.source
    WHERE r.received_at >= CAST(:day AS date)::timestamp AT TIME ZONE 'UTC'
      AND r.received_at < (CAST(:day AS date) + 1)::timestamp AT TIME ZONE 'UTC'
      AND (h.source IS NULL OR r.status NOT IN ('processed', 'ignored') OR r.received_at >= h.before)
      AND EXISTS (SELECT 1 FROM {name} p WHERE p.receipt_id = coalesce(r.main_id, r.id))
)

-- name: attach_day
ALTER TABLE webhook_payloads ATTACH PARTITION {name} FOR VALUES FROM ('{day}') TO ('{next_day}')

-- name: flag_day
COMMENT ON TABLE {name} IS 'oncehook: to be dropped'

-- name: detach_day
ALTER TABLE webhook_payloads DETACH PARTITION {name} CONCURRENTLY

-- name: finish_detach
ALTER TABLE webhook_payloads DETACH PARTITION {name} FINALIZE

-- name: drop_day
-- Both statements run in one transaction.
UPDATE webhook_payload_objects SET receipt_id = NULL, day = NULL, is_released = true WHERE day = '{day}';
DROP TABLE IF EXISTS {name}

-- name: payloads_after
SELECT p.receipt_id, p.body, p.headers, p.object, r.source, r.tenant, r.event_id
FROM webhook_payloads p JOIN webhook_receipts r ON r.id = p.receipt_id
WHERE p.receipt_id > :after ORDER BY p.receipt_id LIMIT :limit

-- name: receipts_with_object
SELECT r.id FROM webhook_receipts r
JOIN webhook_payloads p ON p.receipt_id = r.id AND p.day = (r.received_at AT TIME ZONE 'UTC')::date
WHERE r.object_id = :object_id ORDER BY r.id

-- name: receipts_of_events
-- All receipts of the events that these receipts belong to.
WITH mains AS MATERIALIZED (
    SELECT DISTINCT coalesce(main_id, id) AS id FROM webhook_receipts WHERE id = ANY(CAST(:receipts AS text)::bigint[])
)
SELECT id FROM mains UNION SELECT c.id FROM mains m JOIN webhook_receipts c ON c.main_id = m.id ORDER BY 1

-- name: erase_payloads
DELETE FROM webhook_payloads WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[]) RETURNING tableoid::regclass::text AS name

-- name: erase_in_receipts
-- A sealed error cannot be searched, so it is erased with the payload.
UPDATE webhook_receipts
SET object_id = CASE WHEN position(CAST(:text AS text) IN lower(object_id)) > 0 THEN NULL ELSE object_id END,
    correlation_id = CASE WHEN position(CAST(:text AS text) IN lower(correlation_id)) > 0 THEN NULL ELSE correlation_id END,
    last_error = CASE WHEN position(CAST(:text AS text) IN lower(last_error)) > 0 OR position(CAST(:sealed AS text) IN last_error) > 0
                      THEN '(erased)' ELSE last_error END,
    serial_key = CASE WHEN position(CAST(:text AS text) IN lower(serial_key)) > 0 AND status IN ('processed', 'ignored') THEN NULL
                      ELSE serial_key END
WHERE id = ANY(CAST(:receipts AS text)::bigint[])
  AND (position(CAST(:text AS text) IN lower(concat_ws(' ', object_id, correlation_id, last_error, serial_key))) > 0
       OR position(CAST(:sealed AS text) IN last_error) > 0)
RETURNING id

-- name: erase_in_attempts
UPDATE webhook_past_attempts SET error = '(erased)', traceback = NULL
WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[])
  AND (position(CAST(:text AS text) IN lower(concat_ws(' ', error, traceback))) > 0 OR position(CAST(:sealed AS text) IN error) > 0)
RETURNING receipt_id

-- name: vacuum_day
VACUUM {name}
