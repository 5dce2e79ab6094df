-- name: add_rejection_counts
INSERT INTO webhook_refusals (source, minute_at, reason, refused)
SELECT value ->> 'source', strftime('%Y-%m-%dT%H:%M:00.000000Z', 'now'), value ->> 'reason', value ->> 'refused'
FROM json_each(:input) WHERE true
ON CONFLICT (source, minute_at, reason) DO UPDATE SET refused = refused + excluded.refused

-- name: add_ack_counts
INSERT INTO webhook_acks (source, minute_at, bucket, acked)
SELECT value ->> 'source', strftime('%Y-%m-%dT%H:%M:00.000000Z', 'now'), value ->> 'bucket', value ->> 'acked'
FROM json_each(:input) WHERE true
ON CONFLICT (source, minute_at, bucket) DO UPDATE SET acked = acked + excluded.acked

-- name: ack_buckets
SELECT source, bucket, sum(acked) AS value FROM webhook_acks
WHERE minute_at >= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds') GROUP BY source, bucket

-- name: history_age
SELECT (julianday('now') - julianday(received_at)) * 86400 AS value FROM webhook_receipts ORDER BY received_at, id LIMIT 1

-- name: failed_effect_counts
SELECT source, count(*) AS value FROM webhook_effects WHERE status = 'failed' GROUP BY source

-- name: oldest_unfinished
-- The age of the oldest unfinished event of each source and consumer, from its arrival or last replay. Waiting events are read
-- with one probe of the index per source and consumer, and leased events are few. For an inline event only the running attempt
-- counts: between attempts its provider decides when to deliver again. Events without a handler are counted by
-- unhandled_counts.
WITH RECURSIVE waiting (id) AS (
    SELECT (
        SELECT id FROM webhook_receipts WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NULL
        ORDER BY consumer, source, coalesce(replayed_at, received_at) LIMIT 1
    )
    UNION ALL
    SELECT coalesce(
        (
            SELECT r.id FROM webhook_receipts r
            WHERE r.status IN ('received', 'retrying') AND NOT r.is_inline AND r.unhandled_at IS NULL
              AND r.consumer = p.consumer AND r.source > p.source
            ORDER BY r.source, coalesce(r.replayed_at, r.received_at) LIMIT 1
        ),
        (
            SELECT r.id FROM webhook_receipts r
            WHERE r.status IN ('received', 'retrying') AND NOT r.is_inline AND r.unhandled_at IS NULL AND r.consumer > p.consumer
            ORDER BY r.consumer, r.source, coalesce(r.replayed_at, r.received_at) LIMIT 1
        )
    )
    FROM waiting w JOIN webhook_receipts p ON p.id = w.id
), paused AS (
    SELECT source, consumer FROM webhook_pauses WHERE ends_at IS NULL OR ends_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
)
SELECT u.source, u.consumer, (julianday('now') - julianday(min(u.since))) * 86400 AS value,
       u.source IN (SELECT source FROM paused) OR u.consumer IN (SELECT consumer FROM paused) AS is_paused
FROM (
    SELECT r.source, r.consumer, coalesce(r.replayed_at, r.received_at) AS since
    FROM waiting w JOIN webhook_receipts r ON r.id = w.id
    UNION ALL
    SELECT source, consumer, CASE WHEN is_inline THEN leased_at ELSE coalesce(replayed_at, received_at) END
    FROM webhook_receipts WHERE status = 'processing'
) u
GROUP BY u.source, u.consumer ORDER BY u.source, u.consumer

-- name: unhandled_counts
SELECT source, count(*) AS value FROM webhook_receipts
WHERE unhandled_at IS NOT NULL AND status IN ('received', 'retrying') AND unhandled_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')
GROUP BY source

-- name: pause_ages
-- A pause with an end cannot be forgotten, so it does not count.
SELECT source, (julianday('now') - julianday(paused_at)) * 86400 AS value FROM webhook_pauses
WHERE ends_at IS NULL AND consumer = ''

-- name: consumer_pause_ages
SELECT consumer AS source, (julianday('now') - julianday(paused_at)) * 86400 AS value FROM webhook_pauses
WHERE ends_at IS NULL AND source = ''

-- name: rejection_counts
SELECT source, sum(refused) AS value FROM webhook_refusals
WHERE minute_at >= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds') GROUP BY source

-- name: silent_sources
-- The seconds since the last authentic delivery: since a secret last verified one, or since the newest receipt.
SELECT source, (julianday('now') - julianday(max(verified_at))) * 86400 AS value FROM (
    SELECT source, last_used_at AS verified_at FROM webhook_secrets
    UNION ALL
    SELECT source, received_at FROM (
        SELECT source, received_at FROM webhook_receipts WHERE main_id IS NULL ORDER BY received_at DESC, id DESC LIMIT :most
    ) AS newest
) AS deliveries GROUP BY source

-- name: rejecting_sources
-- The age of the first rejection since a delivery was last verified.
SELECT f.source, (julianday('now') - julianday(min(f.minute_at))) * 86400 AS value,
       (julianday('now') - julianday(max(f.minute_at))) * 86400 AS last, sum(f.refused) AS number
FROM webhook_refusals f
LEFT JOIN (SELECT source, max(last_used_at) AS used_at FROM webhook_secrets GROUP BY source) s ON s.source = f.source
WHERE f.reason IN ('bad_signature', 'stale_timestamp', 'malformed', 'too_large', 'unsupported_media_type')
  AND (s.used_at IS NULL OR f.minute_at > s.used_at)
GROUP BY f.source

-- name: failing_inline
SELECT source, (julianday('now') - julianday(min(received_at))) * 86400 AS value, count(*) AS number
FROM webhook_receipts WHERE is_inline AND status = 'retrying' GROUP BY source

-- name: open_incidents
INSERT INTO webhook_incidents (key, rule, source, value, worst, threshold, summary)
SELECT value ->> 'key', value ->> 'rule', value ->> 'source', value ->> 'value', value ->> 'value', value ->> 'threshold',
       value ->> 'summary'
FROM json_each(:input) WHERE true
ON CONFLICT (rule, source) WHERE recovered_at IS NULL DO NOTHING
RETURNING id, rule, source, value, threshold, summary

-- name: update_incidents
UPDATE webhook_incidents SET value = g.value, worst = max(worst, g.value), threshold = g.threshold, below_at = NULL
FROM (
    SELECT value ->> 'rule' AS rule, value ->> 'source' AS source, value ->> 'value' AS value, value ->> 'threshold' AS threshold
    FROM json_each(:input)
) AS g
WHERE webhook_incidents.rule = g.rule AND webhook_incidents.source = g.source AND recovered_at IS NULL

-- name: start_recovery
UPDATE webhook_incidents SET below_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE recovered_at IS NULL AND below_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM json_each(:input) AS g
    WHERE g.value ->> 'rule' = webhook_incidents.rule AND g.value ->> 'source' = webhook_incidents.source
)

-- name: recover_incidents
UPDATE webhook_incidents SET recovered_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE recovered_at IS NULL AND below_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')
RETURNING id, rule, source, (julianday('now') - julianday(opened_at)) * 86400 AS seconds

-- name: notify_opened
INSERT INTO webhook_alerts (incident_id, target, word)
SELECT i.value, t.value, 'opened' FROM json_each(:ids) AS i CROSS JOIN json_each(:targets) AS t

-- name: notify_recovered
-- Only for targets that received the opening or will receive it.
INSERT INTO webhook_alerts (incident_id, target, word)
SELECT a.incident_id, a.target, 'recovered' FROM webhook_alerts a
WHERE a.incident_id IN (SELECT value FROM json_each(:ids)) AND a.word = 'opened' AND a.status <> 'failed'
ON CONFLICT DO NOTHING

-- name: notify_reminder
INSERT INTO webhook_alerts (incident_id, target, word, number)
SELECT a.incident_id, a.target, 'reminder', CAST((julianday('now') - julianday(i.opened_at)) * 86400 / :seconds AS INTEGER)
FROM webhook_alerts a JOIN webhook_incidents i ON i.id = a.incident_id
WHERE a.word = 'opened' AND a.status = 'told' AND i.recovered_at IS NULL AND i.below_at IS NULL
  AND i.opened_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')
ON CONFLICT DO NOTHING

-- name: lease_alerts
-- A recovery waits until its target has received the opening. No reminder is sent for a recovered incident.
UPDATE webhook_alerts
SET status = 'sending', attempts = attempts + 1, lease = lease + 1 + abs(random() % 4294967296), worker = :worker,
    next_attempt_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || (
        SELECT g.value ->> 'seconds' FROM json_each(:targets) AS g WHERE g.value ->> 'target' = webhook_alerts.target
    ) || ' seconds')
WHERE id IN (
    SELECT a.id FROM webhook_alerts a
    JOIN webhook_incidents i ON i.id = a.incident_id
    JOIN json_each(:targets) AS g ON g.value ->> 'target' = a.target
    WHERE a.status IN ('waiting', 'sending') AND a.next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
      AND (a.word <> 'reminder' OR i.recovered_at IS NULL)
      AND (a.word = 'opened' OR EXISTS (
          SELECT 1 FROM webhook_alerts o
          WHERE o.incident_id = a.incident_id AND o.target = a.target AND o.word = 'opened' AND o.status = 'told'
      ))
    ORDER BY a.next_attempt_at, a.id LIMIT :limit
)
RETURNING id

-- name: leased_alerts
SELECT a.id, a.lease, a.attempts AS attempt, a.target, a.word, a.number, i.id AS incident, i.key, i.rule, i.source, i.value,
       i.worst, i.threshold, i.summary, i.opened_at, i.recovered_at
FROM webhook_alerts a JOIN webhook_incidents i ON i.id = a.incident_id
WHERE a.id IN (SELECT value FROM json_each(:ids)) ORDER BY a.id

-- name: settle_alert
UPDATE webhook_alerts
SET status = :status, last_error = :error,
    told_at = CASE WHEN :status = 'told' THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END,
    next_attempt_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || :after || ' seconds')
WHERE id = :id AND lease = :lease AND status = 'sending'
RETURNING id

-- name: incidents
SELECT id AS incident, rule, source, opened_at, value, worst, threshold, summary, below_at FROM webhook_incidents
WHERE recovered_at IS NULL ORDER BY id DESC LIMIT :limit

-- name: incident_alerts
SELECT incident_id AS incident, target, word, status, attempts, told_at, last_error FROM webhook_alerts
WHERE incident_id IN (SELECT value FROM json_each(:ids)) ORDER BY id

-- name: prune_alerts
DELETE FROM webhook_alerts WHERE incident_id IN (
    SELECT id FROM webhook_incidents
    WHERE recovered_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')
)

-- name: prune_incidents
DELETE FROM webhook_incidents WHERE recovered_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')

-- name: prune_rejection_counts
DELETE FROM webhook_refusals WHERE minute_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')

-- name: prune_acks
DELETE FROM webhook_acks WHERE minute_at < strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '-' || :seconds || ' seconds')
