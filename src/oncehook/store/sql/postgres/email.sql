-- Each statement has one parameter, :input, a JSON text, so that it runs in transactions of any driver.

-- name: email_insert_events
INSERT INTO webhook_email_events (source, key, provider, type, bounce, message_id, recipient, domain, occurred_at, reason, tags,
                                  metadata, receipt_id)
SELECT source, key, provider, type, bounce, message_id, recipient, domain, occurred_at, reason, tags, metadata, receipt_id
FROM json_to_recordset(CAST(:input AS json)) AS f (
    source text, key text, provider text, type text, bounce text, message_id text, recipient text, domain text,
    occurred_at timestamptz, reason text, tags text, metadata text, receipt_id bigint
)
ORDER BY source COLLATE "C", key COLLATE "C"
ON CONFLICT (source, key) DO NOTHING
RETURNING source, key

-- name: email_update_status
INSERT INTO webhook_email_status AS s (message_id, recipient, source, status, bounce, reason, occurred_at, place, event_key,
                                       delivered_at, opened_at, clicked_at, last_at)
SELECT message_id, recipient, source, status, bounce, reason, occurred_at, place, event_key, delivered_at, opened_at,
       clicked_at, last_at
FROM json_to_recordset(CAST(:input AS json)) AS f (
    message_id text, recipient text, source text, status text, bounce text, reason text, occurred_at timestamptz, place text,
    event_key text, delivered_at timestamptz, opened_at timestamptz, clicked_at timestamptz, last_at timestamptz
)
ORDER BY message_id COLLATE "C", recipient COLLATE "C", source COLLATE "C"
ON CONFLICT (message_id, recipient, source) DO UPDATE SET
    status = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.status ELSE s.status END,
    bounce = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.bounce ELSE s.bounce END,
    reason = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.reason ELSE s.reason END,
    occurred_at = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.occurred_at
                       ELSE s.occurred_at END,
    place = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.place ELSE s.place END,
    event_key = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.event_key
                     ELSE s.event_key END,
    delivered_at = least(excluded.delivered_at, s.delivered_at),
    opened_at = least(excluded.opened_at, s.opened_at),
    clicked_at = least(excluded.clicked_at, s.clicked_at),
    last_at = greatest(excluded.last_at, s.last_at)
WHERE (excluded.place, excluded.event_key) > (s.place, s.event_key) OR excluded.last_at > s.last_at
   OR least(excluded.delivered_at, s.delivered_at) IS DISTINCT FROM s.delivered_at
   OR least(excluded.opened_at, s.opened_at) IS DISTINCT FROM s.opened_at
   OR least(excluded.clicked_at, s.clicked_at) IS DISTINCT FROM s.clicked_at
RETURNING 1

-- name: email_lock_counts
-- Two concurrent transactions would miss each other's soft bounces of an address. Each locks the addresses, in order.
SELECT pg_advisory_xact_lock(number)::text
FROM (
    SELECT DISTINCT hashtextextended(value, 1701) AS number FROM json_array_elements_text(CAST(:input AS json)) ORDER BY 1
) numbers

-- name: email_suppressing_events
SELECT e.recipient, e.source, e.key, e.type, e.bounce, e.message_id, e.occurred_at, s.removed_at
FROM json_array_elements_text(CAST(:input AS json)) AS g (address)
JOIN webhook_email_events e ON e.recipient = g.address COLLATE "C"
LEFT JOIN webhook_suppressions s ON s.address = e.recipient
WHERE e.type IN ('bounced', 'complained', 'unsubscribed', 'rejected')

-- name: email_suppress
INSERT INTO webhook_suppressions AS s (address, suppressed_at, reason, source, event_key, message_id)
SELECT address, since, reason, source, event_key, message_id
FROM json_to_recordset(CAST(:input AS json)) AS f (
    address text, since timestamptz, reason text, source text, event_key text, message_id text
)
ORDER BY address COLLATE "C"
ON CONFLICT (address) DO UPDATE SET
    suppressed_at = excluded.suppressed_at, reason = excluded.reason, source = excluded.source, event_key = excluded.event_key,
    message_id = excluded.message_id
WHERE (s.removed_at IS NULL OR excluded.suppressed_at > s.removed_at)
  AND (s.suppressed_at IS NULL OR (excluded.suppressed_at, excluded.source, excluded.event_key)
       < (s.suppressed_at, s.source, s.event_key))
RETURNING 1

-- name: email_status_keys
WITH after AS (
    SELECT a ->> 0 AS message_id, a ->> 1 AS recipient, a ->> 2 AS source FROM (SELECT CAST(:input AS json) -> 'after' AS a) g
)
SELECT message_id, recipient, source FROM (
    (SELECT DISTINCT message_id, recipient, source FROM webhook_email_events
     WHERE (message_id, recipient, source) > (SELECT message_id COLLATE "C", recipient COLLATE "C", source COLLATE "C" FROM after)
       AND message_id <> ''
     ORDER BY 1, 2, 3 LIMIT (CAST(:input AS json) ->> 'limit')::integer)
    UNION
    (SELECT message_id, recipient, source FROM webhook_email_status
     WHERE (message_id, recipient, source) > (SELECT message_id COLLATE "C", recipient COLLATE "C", source COLLATE "C" FROM after)
     ORDER BY 1, 2, 3 LIMIT (CAST(:input AS json) ->> 'limit')::integer)
) keys
ORDER BY 1, 2, 3 LIMIT (CAST(:input AS json) ->> 'limit')::integer

-- name: email_lock_status
SELECT s.message_id, s.recipient, s.source, s.status, s.bounce, s.reason, s.occurred_at, s.place, s.event_key, s.delivered_at,
       s.opened_at, s.clicked_at, s.last_at
FROM json_to_recordset(CAST(:input AS json)) AS k (message_id text, recipient text, source text)
JOIN webhook_email_status s USING (message_id, recipient, source)
ORDER BY s.message_id, s.recipient, s.source
FOR UPDATE OF s

-- name: email_status_events
SELECT e.message_id, e.recipient, e.source, e.key, e.type, e.bounce, e.reason, e.occurred_at
FROM json_to_recordset(CAST(:input AS json)) AS k (message_id text, recipient text, source text)
JOIN webhook_email_events e USING (message_id, recipient, source)

-- name: email_drop_status
DELETE FROM webhook_email_status s
USING json_to_recordset(CAST(:input AS json)) AS k (message_id text, recipient text, source text)
WHERE s.message_id = k.message_id AND s.recipient = k.recipient AND s.source = k.source
RETURNING 1

-- name: email_addresses
SELECT address FROM (
    (SELECT DISTINCT recipient AS address FROM webhook_email_events
     WHERE type IN ('bounced', 'complained', 'unsubscribed', 'rejected')
       AND recipient > (CAST(:input AS json) ->> 'after') COLLATE "C"
     ORDER BY 1 LIMIT (CAST(:input AS json) ->> 'limit')::integer)
    UNION
    (SELECT address FROM webhook_suppressions WHERE address > (CAST(:input AS json) ->> 'after') COLLATE "C"
     ORDER BY 1 LIMIT (CAST(:input AS json) ->> 'limit')::integer)
) addresses
ORDER BY 1 LIMIT (CAST(:input AS json) ->> 'limit')::integer

-- name: email_lock_suppressions
SELECT s.address, s.suppressed_at AS since, s.reason, s.source, s.event_key, s.message_id, s.added_at, s.added_reason, s.removed_at, s.note, s.actor
FROM json_array_elements_text(CAST(:input AS json)) AS g (address)
JOIN webhook_suppressions s ON s.address = g.address COLLATE "C"
ORDER BY s.address
FOR UPDATE OF s

-- name: email_lock_addresses
-- Creates and locks the row, so that a projection of the same address runs before or after this transaction.
INSERT INTO webhook_suppressions (address)
SELECT value FROM json_array_elements_text(CAST(:input AS json)) ORDER BY value COLLATE "C"
ON CONFLICT (address) DO UPDATE SET address = excluded.address
RETURNING 1

-- name: email_write_suppressions
INSERT INTO webhook_suppressions AS s (address, suppressed_at, reason, source, event_key, message_id, added_at, added_reason,
                                       removed_at, note, actor)
SELECT address, since, reason, source, event_key, message_id, added_at, added_reason, removed_at, note, actor
FROM json_to_recordset(CAST(:input AS json)) AS f (
    address text, since timestamptz, reason text, source text, event_key text, message_id text, added_at timestamptz,
    added_reason text, removed_at timestamptz, note text, actor text
)
ORDER BY address COLLATE "C"
ON CONFLICT (address) DO UPDATE SET
    suppressed_at = excluded.suppressed_at, reason = excluded.reason, source = excluded.source, event_key = excluded.event_key,
    message_id = excluded.message_id, added_at = excluded.added_at, added_reason = excluded.added_reason,
    removed_at = excluded.removed_at, note = excluded.note, actor = excluded.actor
RETURNING 1

-- name: email_drop_suppressions
DELETE FROM webhook_suppressions
WHERE address IN (SELECT value COLLATE "C" FROM json_array_elements_text(CAST(:input AS json)))
RETURNING 1

-- name: email_audit
INSERT INTO webhook_audit (actor, action, detail)
SELECT g ->> 'actor', g ->> 'action', g ->> 'detail' FROM (SELECT CAST(:input AS json) AS g) input
RETURNING 1

-- name: email_now
SELECT now() FROM (SELECT CAST(:input AS json)) input

-- name: email_status_of
SELECT s.message_id, s.recipient, s.source, s.status, s.bounce, s.reason, s.occurred_at, s.event_key, s.delivered_at,
       s.opened_at, s.clicked_at, s.last_at
FROM webhook_email_status s
WHERE s.message_id IN (SELECT value COLLATE "C" FROM json_array_elements_text(CAST(:input AS json)))
ORDER BY s.message_id, s.recipient, s.source

-- name: email_events_of
SELECT e.source, e.key, e.provider, e.type, e.bounce, e.message_id, e.recipient, e.occurred_at, e.reason, e.tags, e.metadata,
       e.receipt_id AS receipt
FROM webhook_email_events e
WHERE e.message_id IN (SELECT value COLLATE "C" FROM json_array_elements_text(CAST(:input AS json)))
ORDER BY e.occurred_at, e.source, e.key

-- name: email_suppressions_of
SELECT s.address, s.suppressed_at AS since, s.reason, s.source, s.event_key, s.message_id, s.added_at, s.removed_at, s.note, s.actor
FROM webhook_suppressions s
WHERE s.address IN (SELECT value COLLATE "C" FROM json_array_elements_text(CAST(:input AS json)))
ORDER BY s.suppressed_at, s.address

-- name: email_suppressions
SELECT s.address, s.suppressed_at AS since, s.reason, s.source, s.event_key, s.message_id, s.added_at, s.removed_at, s.note, s.actor
FROM webhook_suppressions s
WHERE s.suppressed_at IS NOT NULL AND s.address > (CAST(:input AS json) ->> 'after') COLLATE "C"
  AND position(lower((CAST(:input AS json) ->> 'search') COLLATE "C") IN lower(s.address)) > 0
ORDER BY s.address
LIMIT (CAST(:input AS json) ->> 'limit')::integer

-- name: email_counts
WITH request AS (
    SELECT * FROM json_to_record(CAST(:input AS json)) AS g (
        by_day boolean, by_source boolean, by_type boolean, by_tag boolean, by_domain boolean, since timestamptz,
        until timestamptz, source text
    )
)
SELECT CASE WHEN g.by_day THEN to_char(e.occurred_at AT TIME ZONE 'UTC', 'YYYY-MM-DD') END AS day,
       CASE WHEN g.by_source THEN e.source END AS source,
       CASE WHEN g.by_type THEN e.type END AS type,
       CASE WHEN g.by_type THEN e.bounce END AS bounce,
       t.tag, CASE WHEN g.by_domain THEN e.domain END AS domain,
       count(*) AS events
FROM request g
JOIN webhook_email_events e ON (g.since IS NULL OR e.occurred_at >= g.since) AND (g.until IS NULL OR e.occurred_at < g.until)
                           AND (g.source IS NULL OR e.source = g.source COLLATE "C")
LEFT JOIN LATERAL json_array_elements_text(CASE WHEN g.by_tag THEN CAST(e.tags AS json) END) AS t (tag) ON true
GROUP BY 1, 2, 3, 4, 5, 6
ORDER BY 1, 2, 3, 4, 5, 6

-- name: email_old_status
SELECT s.message_id, s.recipient, s.source FROM webhook_email_status s
WHERE s.last_at < (CAST(:input AS json) ->> 'before')::timestamptz
ORDER BY s.last_at LIMIT (CAST(:input AS json) ->> 'most')::integer
FOR UPDATE OF s SKIP LOCKED

-- name: email_prunable
SELECT count(*) FROM webhook_email_events e
LEFT JOIN webhook_email_status s
    ON s.message_id = e.message_id AND s.recipient = e.recipient AND s.source = e.source
WHERE CASE WHEN e.message_id = '' THEN e.occurred_at ELSE s.last_at END
    < (CAST(:input AS json) ->> 'before')::timestamptz

-- name: email_drop_events
DELETE FROM webhook_email_events e
USING json_to_recordset(CAST(:input AS json)) AS k (message_id text, recipient text, source text)
WHERE e.message_id = k.message_id AND e.recipient = k.recipient AND e.source = k.source
RETURNING 1

-- name: email_drop_unassigned
DELETE FROM webhook_email_events
WHERE (source, key) IN (
    SELECT source, key FROM webhook_email_events
    WHERE message_id = '' AND occurred_at < (CAST(:input AS json) ->> 'before')::timestamptz
    LIMIT (CAST(:input AS json) ->> 'most')::integer
)
RETURNING 1

-- name: email_secure_delete
-- Nothing to do: autovacuum removes deleted rows from their pages.
SELECT 1 FROM (SELECT CAST(:input AS json)) input WHERE false

-- name: email_forget_events
DELETE FROM webhook_email_events WHERE lower(recipient) = lower((CAST(:input AS json) ->> 'address') COLLATE "C")
RETURNING 1

-- name: email_forget_mentions
UPDATE webhook_email_events SET
    reason = CASE WHEN position(lower((CAST(:input AS json) ->> 'address') COLLATE "C") IN lower(reason)) > 0 THEN NULL ELSE reason END,
    tags = CASE WHEN position(lower((CAST(:input AS json) ->> 'address') COLLATE "C") IN lower(tags)) > 0 THEN '[]' ELSE tags END,
    metadata = CASE WHEN position(lower((CAST(:input AS json) ->> 'address') COLLATE "C") IN lower(metadata)) > 0 THEN '{}' ELSE metadata END
WHERE position(lower((CAST(:input AS json) ->> 'address') COLLATE "C") IN lower(concat_ws(' ', reason, tags, metadata))) > 0
RETURNING 1

-- name: email_forget_status
DELETE FROM webhook_email_status WHERE lower(recipient) = lower((CAST(:input AS json) ->> 'address') COLLATE "C")
RETURNING 1

-- name: email_forget_reasons
UPDATE webhook_email_status SET reason = NULL
WHERE position(lower((CAST(:input AS json) ->> 'address') COLLATE "C") IN lower(reason)) > 0
RETURNING 1

-- name: email_forget_notes
UPDATE webhook_suppressions SET note = NULL
WHERE position(lower((CAST(:input AS json) ->> 'address') COLLATE "C") IN lower(note)) > 0
RETURNING 1

-- name: email_forget_addresses
SELECT address FROM webhook_suppressions WHERE lower(address) = lower((CAST(:input AS json) ->> 'address') COLLATE "C") ORDER BY address

-- name: email_mentions
SELECT 1 AS found FROM webhook_email_events WHERE lower(recipient) = lower((CAST(:input AS json) ->> 'address') COLLATE "C") OR position(lower((CAST(:input AS json) ->> 'address') COLLATE "C") IN lower(concat_ws(' ', reason, tags, metadata))) > 0
UNION
SELECT 1 FROM webhook_suppressions WHERE lower(address) = lower((CAST(:input AS json) ->> 'address') COLLATE "C") OR position(lower((CAST(:input AS json) ->> 'address') COLLATE "C") IN lower(note)) > 0
