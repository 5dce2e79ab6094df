-- name: waiting_tenants
-- The next tenants with waiting receipts, and whether the first receipt of each is due. Probes the index once per tenant,
-- regardless of the number of waiting receipts.
WITH RECURSIVE tenants AS (
    (
        SELECT source, tenant, next_attempt_at, leased_at FROM webhook_receipts
        WHERE consumer = :consumer AND tenant <> '' AND status IN ('received', 'retrying') AND NOT is_inline
          AND serial_key IS NULL AND unhandled_at IS NULL AND (source, tenant) > (:source, :key)
        ORDER BY source, tenant, coalesce(next_attempt_at, received_at), id LIMIT 1
    )
    UNION ALL
    SELECT n.source, n.tenant, n.next_attempt_at, n.leased_at FROM tenants t CROSS JOIN LATERAL (
        SELECT r.source, r.tenant, r.next_attempt_at, r.leased_at FROM webhook_receipts r
        WHERE r.consumer = :consumer AND r.tenant <> '' AND r.status IN ('received', 'retrying') AND NOT r.is_inline
          AND r.serial_key IS NULL AND r.unhandled_at IS NULL AND (r.source, r.tenant) > (t.source, t.tenant)
        ORDER BY r.source, r.tenant, coalesce(r.next_attempt_at, r.received_at), r.id LIMIT 1
    ) n
)
SELECT source, tenant AS key, (next_attempt_at IS NULL OR next_attempt_at <= now() OR leased_at > now() + interval '1 second') AS is_due
FROM tenants LIMIT :most

-- name: lease_turn
-- Leases up to `each` receipts of each of some tenants, and up to `limit` in total.
WITH due AS MATERIALIZED (
    SELECT d.id FROM json_to_recordset(CAST(:keys AS json)) AS k (source text, key text)
    CROSS JOIN LATERAL (
        SELECT h.id FROM webhook_receipts h
        WHERE h.consumer = :consumer AND h.source = k.source AND h.tenant = k.key AND h.tenant <> ''
          AND h.status IN ('received', 'retrying') AND NOT h.is_inline AND h.serial_key IS NULL AND h.unhandled_at IS NULL
          AND coalesce(h.next_attempt_at, h.received_at) <= CASE
              WHEN (SELECT max(received_at) FROM webhook_receipts) > now() + interval '1 second' THEN 'infinity' ELSE now() END
          AND (h.next_attempt_at IS NULL OR h.next_attempt_at <= now() OR h.leased_at > now() + interval '1 second')
          AND (h.crashes > 0) = :rescued AND {> not_paused} AND {> handled_here}
        ORDER BY coalesce(h.next_attempt_at, h.received_at), h.id
        LIMIT :each FOR UPDATE SKIP LOCKED
    ) d
    LIMIT :limit
), {> leased}
