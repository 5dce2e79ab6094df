-- name: serial_keys
-- The next keys with waiting receipts. Probes the index once per key, regardless of the number of waiting receipts.
WITH RECURSIVE keys AS (
    (
        SELECT source, serial_key FROM webhook_receipts
        WHERE consumer = :consumer AND serial_key IS NOT NULL AND status IN ('received', 'retrying') AND unhandled_at IS NULL
          AND (source, serial_key) > (:source, :key)
        ORDER BY source, serial_key LIMIT 1
    )
    UNION ALL
    SELECT n.source, n.serial_key FROM keys k CROSS JOIN LATERAL (
        SELECT r.source, r.serial_key FROM webhook_receipts r
        WHERE r.consumer = :consumer AND r.serial_key IS NOT NULL AND r.status IN ('received', 'retrying') AND r.unhandled_at IS NULL
          AND (r.source, r.serial_key) > (k.source, k.serial_key)
        ORDER BY r.source, r.serial_key LIMIT 1
    ) n
)
SELECT source, serial_key AS key FROM keys LIMIT :most

-- name: lease_serial
-- Considers only the first waiting receipt of each key, and skips the key if another session has locked that receipt. Two
-- workers may see different first receipts, if an earlier one was committed or replayed between their snapshots. Then the
-- unique index on processing receipts rejects the second lease.
-- Each subquery is one probe of its index. As joins they would read all failed receipts. Without `interval '0'` the planner
-- might read the index of all dead letters for those of one key.
WITH head AS MATERIALIZED (
    SELECT h.id FROM json_to_recordset(CAST(:keys AS json)) AS k (source text, key text)
    CROSS JOIN LATERAL (
        SELECT r.id, r.received_at, r.next_attempt_at, r.leased_at, r.crashes, r.source, r.type FROM webhook_receipts r
        WHERE r.consumer = :consumer AND r.source = k.source AND r.serial_key = k.key
          AND r.serial_key IS NOT NULL AND r.status IN ('received', 'retrying') AND r.unhandled_at IS NULL
        ORDER BY r.received_at, r.id LIMIT 1
    ) h
    WHERE (h.next_attempt_at IS NULL OR h.next_attempt_at <= now() OR h.leased_at > now() + interval '1 second') AND (h.crashes > 0) = :rescued
      AND {> not_paused} AND {> handled_here}
      AND (
          SELECT w.id FROM webhook_receipts w
          WHERE w.consumer = :consumer AND w.source = k.source AND w.serial_key = k.key AND w.serial_key IS NOT NULL AND w.status = 'processing'
          LIMIT 1
      ) IS NULL
      AND (k.source = ANY (CAST(:skip_failed AS text[])) OR (
          SELECT f.id FROM webhook_receipts f
          WHERE f.consumer = :consumer AND f.source = k.source AND f.serial_key = k.key AND f.serial_key IS NOT NULL AND f.status = 'failed'
            AND (f.received_at + interval '0', f.id) < (h.received_at, h.id) AND EXISTS (
                SELECT 1 FROM webhook_payloads p
                WHERE p.receipt_id = coalesce(f.main_id, f.id) AND p.day = (f.received_at AT TIME ZONE 'UTC')::date
            )
          LIMIT 1
      ) IS NULL)
    ORDER BY k.source COLLATE "C", k.key COLLATE "C" LIMIT :limit
), due AS MATERIALIZED (
    SELECT r.id FROM webhook_receipts r
    WHERE r.id = ANY (ARRAY(SELECT id FROM head)) AND r.status IN ('received', 'retrying') AND r.unhandled_at IS NULL
      AND (r.next_attempt_at IS NULL OR r.next_attempt_at <= now() OR r.leased_at > now() + interval '1 second') AND (r.crashes > 0) = :rescued
    ORDER BY r.id FOR UPDATE SKIP LOCKED
), leased AS (
    UPDATE webhook_receipts r
    SET status = 'processing', attempts = attempts + 1, lease = lease + 1 + floor(random() * 4294967296)::bigint, leased_at = now(), worker = :worker,
        lease_until = now() + :seconds * interval '1 second'
    FROM due WHERE r.id = due.id
    RETURNING r.id, r.lease, r.attempts, r.source, r.provider, r.event_id, r.type, r.object_id, r.occurred_at, r.received_at,
              r.delivery_id, r.correlation_id, r.replays, r.next_attempt_at, r.serial_key, r.tenant, r.consumer,
              r.main_id
)
SELECT l.id AS receipt, l.lease, l.attempts AS attempt, l.source, l.provider, l.event_id, l.type, l.object_id, l.occurred_at,
       l.received_at, l.delivery_id, l.correlation_id, l.replays, l.tenant, l.consumer, p.body, p.headers, p.object, l.serial_key
FROM leased l LEFT JOIN webhook_payloads p ON p.receipt_id = coalesce(l.main_id, l.id) AND p.day = (l.received_at AT TIME ZONE 'UTC')::date
ORDER BY l.source COLLATE "C", l.serial_key COLLATE "C"
