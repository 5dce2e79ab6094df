-- name: waiting_tenants
-- The next tenants with waiting receipts, and whether the first receipt of each is due. Probes the index once per tenant,
-- regardless of the number of waiting receipts.
WITH RECURSIVE tenants (source, tenant, next_attempt_at, leased_at) AS (
    SELECT source, tenant, next_attempt_at, leased_at FROM (
        SELECT n.source, n.tenant, n.next_attempt_at, n.leased_at FROM webhook_receipts n
        WHERE n.consumer = :consumer AND n.tenant <> '' AND n.status IN ('received', 'retrying') AND NOT n.is_inline
              AND n.serial_key IS NULL AND n.unhandled_at IS NULL
              AND (n.source, n.tenant) > (:source, :key)
        ORDER BY n.source, n.tenant, coalesce(n.next_attempt_at, n.received_at), n.id LIMIT 1
    )
    UNION ALL
    SELECT r.source, r.tenant, r.next_attempt_at, r.leased_at FROM tenants t JOIN webhook_receipts r ON r.id = coalesce(
        (
            SELECT n.id FROM webhook_receipts n
            WHERE n.consumer = :consumer AND n.tenant <> '' AND n.status IN ('received', 'retrying') AND NOT n.is_inline
              AND n.serial_key IS NULL AND n.unhandled_at IS NULL
              AND n.source = t.source AND n.tenant > t.tenant
            ORDER BY n.tenant, coalesce(n.next_attempt_at, n.received_at), n.id LIMIT 1
        ),
        (
            SELECT n.id FROM webhook_receipts n
            WHERE n.consumer = :consumer AND n.tenant <> '' AND n.status IN ('received', 'retrying') AND NOT n.is_inline
              AND n.serial_key IS NULL AND n.unhandled_at IS NULL
              AND n.source > t.source
            ORDER BY n.source, n.tenant, coalesce(n.next_attempt_at, n.received_at), n.id LIMIT 1
        )
    )
    LIMIT :most
)
SELECT source, tenant AS key,
       (next_attempt_at IS NULL OR next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
        OR leased_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')) AS is_due
FROM tenants

-- name: lease_turn
-- Leases up to `each` receipts of one tenant.
{> take_lease}
WHERE id IN (
    SELECT id FROM webhook_receipts h
    WHERE consumer = :consumer AND source = :source AND tenant = :key AND tenant <> '' AND status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL AND unhandled_at IS NULL
      AND coalesce(next_attempt_at, received_at) <= CASE
          WHEN (SELECT max(received_at) FROM webhook_receipts) > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second')
          THEN '9999' ELSE strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END
      AND (next_attempt_at IS NULL OR next_attempt_at <= strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
           OR leased_at > strftime('%Y-%m-%dT%H:%M:%f000Z', 'now', '+1 second'))
      AND (crashes > 0) = :rescued AND {> not_paused} AND {> handled_here}
    ORDER BY coalesce(next_attempt_at, received_at), id
    LIMIT :each
)
{> leased}
