-- name: serial_keys
-- The next keys with waiting receipts. Probes the index once per key, regardless of the number of waiting receipts.
WITH RECURSIVE keys (source, serial_key) AS (
    SELECT source, serial_key FROM (
        SELECT source, serial_key FROM webhook_receipts
        WHERE consumer = :consumer AND serial_key IS NOT NULL AND status IN ('received', 'retrying') AND unhandled_at IS NULL
          AND (source, serial_key) > (:source, :key)
        ORDER BY source, serial_key LIMIT 1
    )
    UNION ALL
    SELECT r.source, r.serial_key FROM keys k JOIN webhook_receipts r ON r.id = coalesce(
        (
            SELECT n.id FROM webhook_receipts n
            WHERE n.consumer = :consumer AND n.serial_key IS NOT NULL AND n.status IN ('received', 'retrying') AND n.unhandled_at IS NULL
              AND n.source = k.source AND n.serial_key > k.serial_key
            ORDER BY n.serial_key LIMIT 1
        ),
        (
            SELECT n.id FROM webhook_receipts n
            WHERE n.consumer = :consumer AND n.serial_key IS NOT NULL AND n.status IN ('received', 'retrying') AND n.unhandled_at IS NULL
              AND n.source > k.source
            ORDER BY n.source, n.serial_key LIMIT 1
        )
    )
    LIMIT :most
)
SELECT source, serial_key AS key FROM keys

-- name: lease_serial
-- Considers only the first waiting receipt of each key.
UPDATE webhook_receipts
SET status = 'processing', attempts = attempts + 1, lease = lease + 1 + abs(random() % 4294967296), worker = :worker,
    leased_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    lease_until = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+' || :seconds || ' seconds')
WHERE id IN (
    SELECT h.id
    FROM json_each(:keys) k JOIN webhook_receipts h ON h.id = (
        SELECT r.id FROM webhook_receipts r
        WHERE r.consumer = :consumer AND r.source = k.value ->> 'source' AND r.serial_key = k.value ->> 'key'
          AND r.serial_key IS NOT NULL AND r.status IN ('received', 'retrying') AND r.unhandled_at IS NULL
        ORDER BY r.id LIMIT 1
    )
    WHERE NOT h.is_inline AND (h.crashes > 0) = :rescued AND {> not_paused}
      AND {> handled_here}
      AND (h.next_attempt_at IS NULL OR h.next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
           OR h.leased_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second'))
      AND NOT EXISTS (
          SELECT 1 FROM webhook_receipts w
          WHERE w.consumer = :consumer AND w.source = h.source AND w.serial_key = h.serial_key AND w.serial_key IS NOT NULL AND w.status = 'processing'
      )
      AND NOT EXISTS (
          SELECT 1 FROM webhook_receipts f JOIN webhook_payloads p ON p.receipt_id = coalesce(f.main_id, f.id)
          WHERE f.consumer = :consumer AND f.source = h.source AND f.serial_key = h.serial_key AND f.serial_key IS NOT NULL AND f.status = 'failed'
            AND f.id < h.id AND h.source NOT IN (SELECT value FROM json_each(:skip_failed))
      )
    ORDER BY h.source, h.serial_key LIMIT :limit
)
RETURNING id AS receipt, lease, attempts AS attempt, source, provider, event_id, type, object_id, occurred_at, received_at,
          delivery_id, correlation_id, replays, tenant, consumer,
          (SELECT body FROM webhook_payloads p WHERE p.receipt_id = coalesce(main_id, id)) AS body,
          (SELECT headers FROM webhook_payloads p WHERE p.receipt_id = coalesce(main_id, id)) AS headers,
          (SELECT object FROM webhook_payloads p WHERE p.receipt_id = coalesce(main_id, id)) AS object, serial_key
