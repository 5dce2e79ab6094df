-- Each statement has one parameter, :input, a JSON text, so that it runs in transactions of any driver.

-- name: email_insert_events
INSERT INTO webhook_email_events (source, key, provider, type, bounce, message_id, recipient, domain, occurred_at, reason, tags,
                                  metadata, receipt_id)
SELECT value ->> 'source', value ->> 'key', value ->> 'provider', value ->> 'type', value ->> 'bounce', value ->> 'message_id',
       value ->> 'recipient', value ->> 'domain', value ->> 'occurred_at', value ->> 'reason', value ->> 'tags',
       value ->> 'metadata', value ->> 'receipt_id'
FROM json_each(:input) WHERE true
ON CONFLICT (source, key) DO NOTHING
RETURNING source, key

-- name: email_update_status
INSERT INTO webhook_email_status AS s (message_id, recipient, source, status, bounce, reason, occurred_at, place, event_key,
                                       delivered_at, opened_at, clicked_at, last_at)
SELECT value ->> 'message_id', value ->> 'recipient', value ->> 'source', value ->> 'status', value ->> 'bounce',
       value ->> 'reason', value ->> 'occurred_at', value ->> 'place', value ->> 'event_key', value ->> 'delivered_at',
       value ->> 'opened_at', value ->> 'clicked_at', value ->> 'last_at'
FROM json_each(:input) WHERE true
ON CONFLICT (message_id, recipient, source) DO UPDATE SET
    status = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.status ELSE s.status END,
    bounce = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.bounce ELSE s.bounce END,
    reason = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.reason ELSE s.reason END,
    occurred_at = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.occurred_at
                       ELSE s.occurred_at END,
    place = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.place ELSE s.place END,
    event_key = CASE WHEN (excluded.place, excluded.event_key) > (s.place, s.event_key) THEN excluded.event_key
                     ELSE s.event_key END,
    delivered_at = coalesce(min(excluded.delivered_at, s.delivered_at), excluded.delivered_at, s.delivered_at),
    opened_at = coalesce(min(excluded.opened_at, s.opened_at), excluded.opened_at, s.opened_at),
    clicked_at = coalesce(min(excluded.clicked_at, s.clicked_at), excluded.clicked_at, s.clicked_at),
    last_at = max(excluded.last_at, s.last_at)
WHERE (excluded.place, excluded.event_key) > (s.place, s.event_key) OR excluded.last_at > s.last_at
   OR coalesce(excluded.delivered_at < coalesce(s.delivered_at, '~'), false)
   OR coalesce(excluded.opened_at < coalesce(s.opened_at, '~'), false)
   OR coalesce(excluded.clicked_at < coalesce(s.clicked_at, '~'), false)
RETURNING 1

-- name: email_lock_counts
-- Nothing to do: there is only one writer.
SELECT '' FROM json_each(:input) WHERE false

-- name: email_suppressing_events
SELECT e.recipient, e.source, e.key, e.type, e.bounce, e.message_id, e.occurred_at, s.removed_at
FROM json_each(:input) g JOIN webhook_email_events e ON e.recipient = g.value
LEFT JOIN webhook_suppressions s ON s.address = e.recipient
WHERE e.type IN ('bounced', 'complained', 'unsubscribed', 'rejected')

-- name: email_suppress
INSERT INTO webhook_suppressions AS s (address, suppressed_at, reason, source, event_key, message_id)
SELECT value ->> 'address', value ->> 'since', value ->> 'reason', value ->> 'source', value ->> 'event_key',
       value ->> 'message_id'
FROM json_each(:input) WHERE true
ON CONFLICT (address) DO UPDATE SET
    suppressed_at = excluded.suppressed_at, reason = excluded.reason, source = excluded.source, event_key = excluded.event_key,
    message_id = excluded.message_id
WHERE (s.removed_at IS NULL OR excluded.suppressed_at > s.removed_at)
  AND (s.suppressed_at IS NULL OR (excluded.suppressed_at, excluded.source, excluded.event_key)
       < (s.suppressed_at, s.source, s.event_key))
RETURNING 1

-- name: email_status_keys
SELECT message_id, recipient, source FROM (
    SELECT * FROM (
        SELECT DISTINCT message_id, recipient, source FROM webhook_email_events
        WHERE (message_id, recipient, source) > (:input ->> '$.after[0]', :input ->> '$.after[1]', :input ->> '$.after[2]')
          AND message_id <> ''
        ORDER BY 1, 2, 3 LIMIT :input ->> 'limit'
    )
    UNION
    SELECT * FROM (
        SELECT message_id, recipient, source FROM webhook_email_status
        WHERE (message_id, recipient, source) > (:input ->> '$.after[0]', :input ->> '$.after[1]', :input ->> '$.after[2]')
        ORDER BY 1, 2, 3 LIMIT :input ->> 'limit'
    )
)
ORDER BY 1, 2, 3 LIMIT :input ->> 'limit'

-- name: email_lock_status
SELECT s.message_id, s.recipient, s.source, s.status, s.bounce, s.reason, s.occurred_at, s.place, s.event_key, s.delivered_at,
       s.opened_at, s.clicked_at, s.last_at
FROM json_each(:input) k
JOIN webhook_email_status s
    ON s.message_id = k.value ->> 'message_id' AND s.recipient = k.value ->> 'recipient' AND s.source = k.value ->> 'source'
ORDER BY s.message_id, s.recipient, s.source

-- name: email_status_events
SELECT e.message_id, e.recipient, e.source, e.key, e.type, e.bounce, e.reason, e.occurred_at
FROM json_each(:input) k
JOIN webhook_email_events e
    ON e.message_id = k.value ->> 'message_id' AND e.recipient = k.value ->> 'recipient' AND e.source = k.value ->> 'source'

-- name: email_drop_status
DELETE FROM webhook_email_status
WHERE (message_id, recipient, source) IN (
    SELECT value ->> 'message_id', value ->> 'recipient', value ->> 'source' FROM json_each(:input)
)
RETURNING 1

-- name: email_addresses
SELECT address FROM (
    SELECT * FROM (
        SELECT DISTINCT recipient AS address FROM webhook_email_events
        WHERE type IN ('bounced', 'complained', 'unsubscribed', 'rejected') AND recipient > :input ->> 'after'
        ORDER BY 1 LIMIT :input ->> 'limit'
    )
    UNION
    SELECT * FROM (
        SELECT address FROM webhook_suppressions WHERE address > :input ->> 'after' ORDER BY 1 LIMIT :input ->> 'limit'
    )
)
ORDER BY 1 LIMIT :input ->> 'limit'

-- name: email_lock_suppressions
SELECT s.address, s.suppressed_at AS since, s.reason, s.source, s.event_key, s.message_id, s.added_at, s.added_reason, s.removed_at, s.note, s.actor
FROM json_each(:input) g JOIN webhook_suppressions s ON s.address = g.value
ORDER BY s.address

-- name: email_lock_addresses
INSERT INTO webhook_suppressions (address)
SELECT value FROM json_each(:input) WHERE true
ON CONFLICT (address) DO NOTHING
RETURNING 1

-- name: email_write_suppressions
INSERT INTO webhook_suppressions AS s (address, suppressed_at, reason, source, event_key, message_id, added_at, added_reason,
                                       removed_at, note, actor)
SELECT value ->> 'address', value ->> 'since', value ->> 'reason', value ->> 'source', value ->> 'event_key',
       value ->> 'message_id', value ->> 'added_at', value ->> 'added_reason', value ->> 'removed_at', value ->> 'note',
       value ->> 'actor'
FROM json_each(:input) WHERE true
ON CONFLICT (address) DO UPDATE SET
    suppressed_at = excluded.suppressed_at, reason = excluded.reason, source = excluded.source, event_key = excluded.event_key,
    message_id = excluded.message_id, added_at = excluded.added_at, added_reason = excluded.added_reason,
    removed_at = excluded.removed_at, note = excluded.note, actor = excluded.actor
RETURNING 1

-- name: email_drop_suppressions
DELETE FROM webhook_suppressions WHERE address IN (SELECT value FROM json_each(:input)) RETURNING 1

-- name: email_audit
INSERT INTO webhook_audit (actor, action, detail)
VALUES (:input ->> 'actor', :input ->> 'action', :input ->> 'detail')
RETURNING 1

-- name: email_now
SELECT strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') WHERE :input IS NOT NULL

-- name: email_status_of
SELECT s.message_id, s.recipient, s.source, s.status, s.bounce, s.reason, s.occurred_at, s.event_key, s.delivered_at,
       s.opened_at, s.clicked_at, s.last_at
FROM webhook_email_status s
WHERE s.message_id IN (SELECT value FROM json_each(:input))
ORDER BY s.message_id, s.recipient, s.source

-- name: email_events_of
SELECT e.source, e.key, e.provider, e.type, e.bounce, e.message_id, e.recipient, e.occurred_at, e.reason, e.tags, e.metadata,
       e.receipt_id AS receipt
FROM webhook_email_events e
WHERE e.message_id IN (SELECT value FROM json_each(:input))
ORDER BY e.occurred_at, e.source, e.key

-- name: email_suppressions_of
SELECT s.address, s.suppressed_at AS since, s.reason, s.source, s.event_key, s.message_id, s.added_at, s.removed_at, s.note, s.actor
FROM webhook_suppressions s
WHERE s.address IN (SELECT value FROM json_each(:input))
ORDER BY s.suppressed_at, s.address

-- name: email_suppressions
SELECT s.address, s.suppressed_at AS since, s.reason, s.source, s.event_key, s.message_id, s.added_at, s.removed_at, s.note, s.actor
FROM webhook_suppressions s
WHERE s.suppressed_at IS NOT NULL AND s.address > :input ->> 'after'
  AND instr(lower(s.address), lower(:input ->> 'search')) > 0
ORDER BY s.address
LIMIT :input ->> 'limit'

-- name: email_counts
SELECT CASE WHEN :input ->> 'by_day' THEN substr(e.occurred_at, 1, 10) END AS day,
       CASE WHEN :input ->> 'by_source' THEN e.source END AS source,
       CASE WHEN :input ->> 'by_type' THEN e.type END AS type,
       CASE WHEN :input ->> 'by_type' THEN e.bounce END AS bounce,
       t.value AS tag, CASE WHEN :input ->> 'by_domain' THEN e.domain END AS domain,
       count(*) AS events
FROM webhook_email_events e
LEFT JOIN json_each(CASE WHEN :input ->> 'by_tag' THEN e.tags ELSE '[]' END) t
WHERE (:input ->> 'since' IS NULL OR e.occurred_at >= :input ->> 'since')
  AND (:input ->> 'until' IS NULL OR e.occurred_at < :input ->> 'until')
  AND (:input ->> 'source' IS NULL OR e.source = :input ->> 'source')
GROUP BY 1, 2, 3, 4, 5, 6
ORDER BY 1 NULLS LAST, 2 NULLS LAST, 3 NULLS LAST, 4 NULLS LAST, 5 NULLS LAST, 6 NULLS LAST

-- name: email_old_status
SELECT message_id, recipient, source FROM webhook_email_status
WHERE last_at < :input ->> 'before' ORDER BY last_at LIMIT :input ->> 'most'

-- name: email_prunable
SELECT count(*) FROM webhook_email_events e
LEFT JOIN webhook_email_status s
    ON s.message_id = e.message_id AND s.recipient = e.recipient AND s.source = e.source
WHERE CASE WHEN e.message_id = '' THEN e.occurred_at ELSE s.last_at END < :input ->> 'before'

-- name: email_drop_events
DELETE FROM webhook_email_events
WHERE (message_id, recipient, source) IN (
    SELECT value ->> 'message_id', value ->> 'recipient', value ->> 'source' FROM json_each(:input)
)
RETURNING 1

-- name: email_drop_unassigned
DELETE FROM webhook_email_events
WHERE rowid IN (
    SELECT rowid FROM webhook_email_events
    WHERE message_id = '' AND occurred_at < :input ->> 'before' LIMIT :input ->> 'most'
)
RETURNING 1

-- name: email_secure_delete
-- From here on, SQLite overwrites deleted content.
PRAGMA secure_delete = ON

-- name: email_forget_events
DELETE FROM webhook_email_events WHERE lower(recipient) = lower(:input ->> 'address')
RETURNING 1

-- name: email_forget_mentions
UPDATE webhook_email_events SET
    reason = CASE WHEN instr(lower(reason), lower(:input ->> 'address')) THEN NULL ELSE reason END,
    tags = CASE WHEN instr(lower(tags), lower(:input ->> 'address')) THEN '[]' ELSE tags END,
    metadata = CASE WHEN instr(lower(metadata), lower(:input ->> 'address')) THEN '{}' ELSE metadata END
WHERE instr(lower(coalesce(reason, '') || ' ' || tags || ' ' || metadata), lower(:input ->> 'address'))
RETURNING 1

-- name: email_forget_status
DELETE FROM webhook_email_status WHERE lower(recipient) = lower(:input ->> 'address')
RETURNING 1

-- name: email_forget_reasons
UPDATE webhook_email_status SET reason = NULL WHERE instr(lower(reason), lower(:input ->> 'address'))
RETURNING 1

-- name: email_forget_notes
UPDATE webhook_suppressions SET note = NULL WHERE instr(lower(note), lower(:input ->> 'address'))
RETURNING 1

-- name: email_forget_addresses
SELECT address FROM webhook_suppressions WHERE lower(address) = lower(:input ->> 'address') ORDER BY address

-- name: email_mentions
SELECT 1 AS found FROM webhook_email_events WHERE lower(recipient) = lower(:input ->> 'address') OR instr(lower(coalesce(reason, '') || ' ' || tags || ' ' || metadata), lower(:input ->> 'address'))
UNION
SELECT 1 FROM webhook_suppressions WHERE lower(address) = lower(:input ->> 'address') OR instr(lower(note), lower(:input ->> 'address'))
