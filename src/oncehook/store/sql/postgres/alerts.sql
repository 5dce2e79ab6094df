-- name: add_rejection_counts
INSERT INTO webhook_refusals AS r (source, minute_at, reason, refused)
SELECT source, date_trunc('minute', now()), reason, refused
FROM json_to_recordset(CAST(:input AS json)) AS g (source text, reason text, refused bigint)
ORDER BY source COLLATE "C", reason COLLATE "C"
ON CONFLICT (source, minute_at, reason) DO UPDATE SET refused = r.refused + excluded.refused

-- name: add_ack_counts
INSERT INTO webhook_acks AS a (source, minute_at, bucket, acked)
SELECT source, date_trunc('minute', now()), bucket, acked
FROM json_to_recordset(CAST(:input AS json)) AS g (source text, bucket integer, acked bigint)
ORDER BY source COLLATE "C", bucket
ON CONFLICT (source, minute_at, bucket) DO UPDATE SET acked = a.acked + excluded.acked

-- name: ack_buckets
SELECT source, bucket, sum(acked)::bigint AS value FROM webhook_acks
WHERE minute_at >= now() - CAST(:seconds AS double precision) * interval '1 second' GROUP BY source, bucket

-- name: history_age
SELECT extract(epoch FROM now() - received_at)::double precision AS value FROM webhook_receipts
ORDER BY received_at, id LIMIT 1

-- name: failed_effect_counts
SELECT source, count(*) AS value FROM webhook_effects WHERE status = 'failed' GROUP BY source

-- name: oldest_unfinished
-- The age of the oldest unfinished event of each source and consumer, from its arrival or last replay. Waiting events are read
-- with one probe of the index per source and consumer, and leased events are few. For an inline event only the running attempt
-- counts: between attempts its provider decides when to deliver again. Events without a handler are counted by
-- unhandled_counts.
WITH RECURSIVE waiting AS (
    (
        SELECT consumer, source, coalesce(replayed_at, received_at) AS since FROM webhook_receipts
        WHERE status IN ('received', 'retrying') AND NOT is_inline AND unhandled_at IS NULL
        ORDER BY consumer, source, coalesce(replayed_at, received_at) LIMIT 1
    )
    UNION ALL
    SELECT n.consumer, n.source, n.since FROM waiting w CROSS JOIN LATERAL (
        SELECT r.consumer, r.source, coalesce(r.replayed_at, r.received_at) AS since FROM webhook_receipts r
        WHERE r.status IN ('received', 'retrying') AND NOT r.is_inline AND r.unhandled_at IS NULL
          AND (r.consumer, r.source) > (w.consumer, w.source)
        ORDER BY r.consumer, r.source, coalesce(r.replayed_at, r.received_at) LIMIT 1
    ) n
), paused AS (
    SELECT source, consumer FROM webhook_pauses WHERE ends_at IS NULL OR ends_at > now()
)
SELECT u.source, u.consumer, extract(epoch FROM now() - min(u.since))::double precision AS value,
       u.source = ANY (ARRAY(SELECT source FROM paused)) OR u.consumer = ANY (ARRAY(SELECT consumer FROM paused)) AS is_paused
FROM (
    SELECT source, consumer, since FROM waiting
    UNION ALL
    SELECT source, consumer, CASE WHEN is_inline THEN leased_at ELSE coalesce(replayed_at, received_at) END
    FROM webhook_receipts WHERE status = 'processing'
) u
GROUP BY u.source, u.consumer ORDER BY u.source, u.consumer

-- name: unhandled_counts
SELECT source, count(*) AS value FROM webhook_receipts
WHERE unhandled_at IS NOT NULL AND status IN ('received', 'retrying') AND unhandled_at < now() - :seconds * interval '1 second'
GROUP BY source

-- name: pause_ages
-- A pause with an end cannot be forgotten, so it does not count.
SELECT source, extract(epoch FROM now() - paused_at)::double precision AS value FROM webhook_pauses
WHERE ends_at IS NULL AND consumer = ''

-- name: consumer_pause_ages
SELECT consumer AS source, extract(epoch FROM now() - paused_at)::double precision AS value FROM webhook_pauses
WHERE ends_at IS NULL AND source = ''

-- name: rejection_counts
SELECT source, sum(refused)::bigint AS value FROM webhook_refusals
WHERE minute_at >= now() - CAST(:seconds AS double precision) * interval '1 second' GROUP BY source

-- name: silent_sources
-- The seconds since the last authentic delivery: since a secret last verified one, or since the newest receipt.
SELECT source, min(extract(epoch FROM now() - verified_at))::double precision AS value FROM (
    SELECT source, last_used_at AS verified_at FROM webhook_secrets
    UNION ALL
    SELECT source, received_at FROM (
        SELECT source, received_at FROM webhook_receipts WHERE main_id IS NULL ORDER BY received_at DESC, id DESC LIMIT :most
    ) AS newest
) AS deliveries GROUP BY source

-- name: rejecting_sources
-- The age of the first rejection since a delivery was last verified.
SELECT f.source, extract(epoch FROM now() - min(f.minute_at))::double precision AS value,
       extract(epoch FROM now() - max(f.minute_at))::double precision AS last, sum(f.refused)::bigint AS number
FROM webhook_refusals f
LEFT JOIN (SELECT source, max(last_used_at) AS used_at FROM webhook_secrets GROUP BY source) s ON s.source = f.source
WHERE f.reason IN ('bad_signature', 'stale_timestamp', 'malformed', 'too_large', 'unsupported_media_type')
  AND (s.used_at IS NULL OR f.minute_at > s.used_at)
GROUP BY f.source

-- name: failing_inline
SELECT source, extract(epoch FROM now() - min(received_at))::double precision AS value, count(*) AS number
FROM webhook_receipts WHERE is_inline AND status = 'retrying' GROUP BY source

-- name: open_incidents
INSERT INTO webhook_incidents (key, rule, source, value, worst, threshold, summary)
SELECT key, rule, source, value, value, threshold, summary FROM json_to_recordset(CAST(:input AS json)) AS g (
    key text, rule text, source text, value double precision, threshold double precision, summary text
)
ORDER BY rule COLLATE "C", source COLLATE "C"
ON CONFLICT (rule, source) WHERE recovered_at IS NULL DO NOTHING
RETURNING id, rule, source, value, threshold, summary

-- name: update_incidents
UPDATE webhook_incidents i SET value = g.value, worst = greatest(i.worst, g.value), threshold = g.threshold, below_at = NULL
FROM json_to_recordset(CAST(:input AS json)) AS g (rule text, source text, value double precision, threshold double precision)
WHERE i.rule = g.rule AND i.source = g.source AND i.recovered_at IS NULL

-- name: start_recovery
UPDATE webhook_incidents i SET below_at = now()
WHERE i.recovered_at IS NULL AND i.below_at IS NULL AND NOT EXISTS (
    SELECT 1 FROM json_to_recordset(CAST(:input AS json)) AS g (rule text, source text) WHERE g.rule = i.rule AND g.source = i.source
)

-- name: recover_incidents
UPDATE webhook_incidents SET recovered_at = now()
WHERE recovered_at IS NULL AND below_at <= now() - CAST(:seconds AS double precision) * interval '1 second'
RETURNING id, rule, source, extract(epoch FROM now() - opened_at)::double precision AS seconds

-- name: notify_opened
INSERT INTO webhook_alerts (incident_id, target, word)
SELECT i.id, t.target, 'opened'
FROM webhook_incidents i CROSS JOIN json_array_elements_text(CAST(:targets AS json)) AS t (target)
WHERE i.id = ANY(CAST(:ids AS text)::bigint[])

-- name: notify_recovered
-- Only for targets that received the opening or will receive it.
INSERT INTO webhook_alerts (incident_id, target, word)
SELECT a.incident_id, a.target, 'recovered' FROM webhook_alerts a
WHERE a.incident_id = ANY(CAST(:ids AS text)::bigint[]) AND a.word = 'opened' AND a.status <> 'failed'
ON CONFLICT DO NOTHING

-- name: notify_reminder
INSERT INTO webhook_alerts (incident_id, target, word, number)
SELECT a.incident_id, a.target, 'reminder', floor(extract(epoch FROM now() - i.opened_at) / CAST(:seconds AS double precision))
FROM webhook_alerts a JOIN webhook_incidents i ON i.id = a.incident_id
WHERE a.word = 'opened' AND a.status = 'told' AND i.recovered_at IS NULL AND i.below_at IS NULL
  AND i.opened_at <= now() - CAST(:seconds AS double precision) * interval '1 second'
ON CONFLICT DO NOTHING

-- name: lease_alerts
-- A recovery waits until its target has received the opening. No reminder is sent for a recovered incident.
WITH due AS (
    SELECT a.id, g.seconds FROM webhook_alerts a
    JOIN webhook_incidents i ON i.id = a.incident_id
    JOIN json_to_recordset(CAST(:targets AS json)) AS g (target text, seconds double precision) ON g.target = a.target
    WHERE a.status IN ('waiting', 'sending') AND a.next_attempt_at <= now()
      AND (a.word <> 'reminder' OR i.recovered_at IS NULL)
      AND (a.word = 'opened' OR EXISTS (
          SELECT 1 FROM webhook_alerts o
          WHERE o.incident_id = a.incident_id AND o.target = a.target AND o.word = 'opened' AND o.status = 'told'
      ))
    ORDER BY a.next_attempt_at, a.id LIMIT :limit FOR UPDATE OF a SKIP LOCKED
)
UPDATE webhook_alerts a
SET status = 'sending', attempts = a.attempts + 1, lease = a.lease + 1 + floor(random() * 4294967296)::bigint, worker = :worker,
    next_attempt_at = now() + due.seconds * interval '1 second'
FROM due WHERE a.id = due.id
RETURNING a.id

-- name: leased_alerts
SELECT a.id, a.lease, a.attempts AS attempt, a.target, a.word, a.number, i.id AS incident, i.key, i.rule, i.source, i.value,
       i.worst, i.threshold, i.summary, i.opened_at, i.recovered_at
FROM webhook_alerts a JOIN webhook_incidents i ON i.id = a.incident_id
WHERE a.id = ANY(CAST(:ids AS text)::bigint[]) ORDER BY a.id

-- name: settle_alert
UPDATE webhook_alerts
SET status = CAST(:status AS text), last_error = CAST(:error AS text),
    told_at = CASE WHEN CAST(:status AS text) = 'told' THEN now() END,
    next_attempt_at = now() + CAST(:after AS double precision) * interval '1 second'
WHERE id = :id AND lease = :lease AND status = 'sending'
RETURNING id

-- name: incidents
SELECT id AS incident, rule, source, opened_at, value, worst, threshold, summary, below_at FROM webhook_incidents
WHERE recovered_at IS NULL ORDER BY id DESC LIMIT :limit

-- name: incident_alerts
SELECT incident_id AS incident, target, word, status, attempts, told_at, last_error FROM webhook_alerts
WHERE incident_id = ANY(CAST(:ids AS text)::bigint[]) ORDER BY id

-- name: prune_alerts
DELETE FROM webhook_alerts WHERE incident_id IN (
    SELECT id FROM webhook_incidents WHERE recovered_at < now() - CAST(:seconds AS double precision) * interval '1 second'
)

-- name: prune_incidents
DELETE FROM webhook_incidents WHERE recovered_at < now() - CAST(:seconds AS double precision) * interval '1 second'

-- name: prune_rejection_counts
DELETE FROM webhook_refusals WHERE minute_at < now() - CAST(:seconds AS double precision) * interval '1 second'

-- name: prune_acks
DELETE FROM webhook_acks WHERE minute_at < now() - CAST(:seconds AS double precision) * interval '1 second'
