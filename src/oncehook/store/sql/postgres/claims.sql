-- name: receipt_ids
SELECT nextval('webhook_receipt_ids') FROM generate_series(1, $1::integer)

-- name: claimed
-- The beginning of the statements `claim` and `claim_with_copies`. The settings apply to this transaction only. Another session may hold the lock of a receipt that is delivered again. The
-- lock timeout keeps it from delaying the other events of this statement. The commit is durable, whatever the default is.
WITH settings AS MATERIALIZED (
    SELECT set_config('lock_timeout', '500ms', true),
           CASE WHEN $3::boolean AND current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
                THEN set_config('synchronous_commit', 'on', true) END
), offered AS (
    SELECT o.* FROM settings CROSS JOIN json_to_recordset($1::json) AS o (
        id bigint, source text, tenant text, provider text, event_id text, type text, object_id text, delivery_id text,
        occurred_at timestamptz, correlation_id text, status text, last_error text, fingerprint text, headers text,
        key_id text, start integer, size integer, inline_seconds double precision, inline_lease bigint, serial_key text, keys text[],
        origin text, copies json
    )
), claimed AS (
    INSERT INTO webhook_receipts (id, source, tenant, provider, event_id, type, object_id, delivery_id, occurred_at,
                                  correlation_id, status, last_error, fingerprint, serial_key, origin, is_inline, attempts, lease,
                                  leased_at, lease_until, failed_at)
    SELECT id, source, coalesce(tenant, ''), provider, event_id, type, object_id, delivery_id, occurred_at, correlation_id,
           coalesce(status, 'received'), last_error, decode(fingerprint, 'hex'), serial_key, origin,
           inline_seconds IS NOT NULL, (inline_seconds IS NOT NULL)::integer, coalesce(inline_lease, 0),
           CASE WHEN inline_seconds IS NOT NULL THEN now() END, now() + inline_seconds * interval '1 second',
           CASE WHEN status = 'failed' THEN now() END
    FROM offered ORDER BY source COLLATE "C", event_id COLLATE "C"
    ON CONFLICT (source, event_id, tenant, consumer) DO NOTHING
    RETURNING id
), keyed AS (
    INSERT INTO webhook_keys (source, tenant, key, receipt_id)
    SELECT source, coalesce(tenant, ''), key, id FROM offered JOIN claimed USING (id), unnest(keys) AS key ORDER BY source, key
)

-- name: claim
{> claimed}
{> claimed_payloads}

-- name: claim_with_copies
-- The receipts of other consumers are written if the one of `main` is new. `nextval` runs after the sort, so the ids of
-- copies follow the order of arrival.
{> claimed}, {> copied}
{> claimed_payloads}

-- name: claim_with_objects
-- Takes the objects that have the bodies. If one is released, its body is NULL here, which fails the statement: an event
-- is never recorded without its body.
{> claimed}, {> copied}, objects AS MATERIALIZED (
    SELECT id, object FROM json_to_recordset($1::json) AS o (id bigint, object text) WHERE object IS NOT NULL
), taken AS (
    UPDATE webhook_payload_objects b SET receipt_id = o.id, day = (now() AT TIME ZONE 'UTC')::date
    FROM objects o JOIN claimed USING (id) WHERE b.address = o.object AND b.receipt_id IS NULL AND NOT b.is_released
    RETURNING b.address
)
INSERT INTO webhook_payloads (receipt_id, day, body, headers, key_id, object)
SELECT id, (now() AT TIME ZONE 'UTC')::date, CASE
           WHEN b.object IS NULL OR b.object IN (SELECT address FROM taken) THEN substring($2::bytea FROM start FOR size)
       END, headers, key_id, b.object
FROM offered JOIN claimed USING (id) LEFT JOIN objects b USING (id)
RETURNING receipt_id

-- name: copied
copied AS (
    INSERT INTO webhook_receipts (id, main_id, consumer, source, tenant, provider, event_id, type, object_id, delivery_id,
                                  occurred_at, correlation_id, status, last_error, fingerprint, serial_key, origin)
    SELECT nextval('webhook_receipt_ids'), o.id, c.consumer, o.source, coalesce(o.tenant, ''), o.provider, o.event_id, o.type,
           o.object_id, o.delivery_id, o.occurred_at, o.correlation_id, coalesce(c.status, 'received'), c.last_error,
           decode(o.fingerprint, 'hex'), c.serial_key, o.origin
    FROM offered o JOIN claimed USING (id)
    CROSS JOIN LATERAL json_to_recordset(o.copies) AS c (consumer text, status text, last_error text, serial_key text)
    ORDER BY o.id, c.consumer
    ON CONFLICT (source, event_id, tenant, consumer) DO NOTHING
)

-- name: claimed_payloads
INSERT INTO webhook_payloads (receipt_id, day, body, headers, key_id)
SELECT id, (now() AT TIME ZONE 'UTC')::date, substring($2::bytea FROM start FOR size), headers, key_id
FROM offered JOIN claimed USING (id)
RETURNING receipt_id

-- name: claimed_before
-- A committed row may not be on a standby yet: after a restart of the primary, nothing waits for its replication any more.
-- If a synchronous standby is named, this statement commits too, which waits until the standby has all earlier commits.
WITH replicated AS MATERIALIZED (
    SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
                THEN set_config('synchronous_commit', 'on', true) END,
           pg_logical_emit_message(true, 'oncehook', '')
    WHERE $3::boolean AND current_setting('synchronous_standby_names') <> ''
)
SELECT r.source, r.event_id, r.tenant, r.id, r.status, r.fingerprint
FROM (SELECT count(*) FROM replicated) AS waited
CROSS JOIN unnest($1::text[], $2::text[], $4::text[]) AS o (source, event_id, tenant)
JOIN webhook_receipts r
    ON r.source = o.source AND r.event_id = o.event_id AND r.tenant = o.tenant AND r.consumer = 'main'

-- name: claimed_by_key
WITH replicated AS MATERIALIZED (  -- as in claimed_before
    SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
                THEN set_config('synchronous_commit', 'on', true) END,
           pg_logical_emit_message(true, 'oncehook', '')
    WHERE $3::boolean AND current_setting('synchronous_standby_names') <> ''
)
SELECT r.id, r.status, r.fingerprint
FROM (SELECT count(*) FROM replicated) AS waited CROSS JOIN webhook_keys k JOIN webhook_receipts r ON r.id = k.receipt_id
WHERE k.source = $1 AND k.tenant = $4 AND k.key = ANY($2::text[]) ORDER BY r.id LIMIT 1

-- name: note_duplicate
INSERT INTO webhook_deliveries (receipt_id, delivery_id, fingerprint, same_body)
SELECT receipt_id, delivery_id, decode(fingerprint, 'hex'), same_body
FROM (
    SELECT *, row_number() OVER (PARTITION BY receipt_id, same_body ORDER BY number) AS position
    FROM ROWS FROM (
        json_to_recordset($1::json) AS (receipt_id bigint, delivery_id text, fingerprint text, same_body boolean)
    ) WITH ORDINALITY AS o (receipt_id, delivery_id, fingerprint, same_body, number)
) o
WHERE position + (SELECT count(*) FROM webhook_deliveries d
               WHERE d.receipt_id = o.receipt_id AND d.same_body = o.same_body) <= $2
  -- It may have been pruned since. After a restored backup, it may be the receipt of another event.
  AND EXISTS (
      SELECT 1 FROM webhook_receipts r
      WHERE r.id = o.receipt_id AND (r.fingerprint = decode(o.fingerprint, 'hex')) = o.same_body
  )
ORDER BY number
