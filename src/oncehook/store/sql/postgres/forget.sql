-- name: tenant_receipts
-- All receipts of a tenant, page by page. Those of an event have the same tenant.
SELECT id, received_at FROM webhook_receipts
WHERE source = :source AND tenant = :tenant AND tenant <> '' AND (received_at, id) > (CAST(:after_time AS timestamptz), CAST(:after_receipt AS bigint))
ORDER BY received_at, id LIMIT :limit

-- name: tenant_counts
SELECT (SELECT count(*) FROM webhook_receipts WHERE source = :source AND tenant = :tenant AND tenant <> '') AS receipts,
       (SELECT count(*) FROM webhook_effects WHERE scope = :scope) AS effects,
       (SELECT count(*) FROM webhook_entities WHERE scope = :scope OR scope > :scope || '@' AND scope < :scope || 'A') AS entities,
       (SELECT count(*) FROM webhook_rejections WHERE source = :source AND tenant = :tenant) AS rejections

-- name: erase_receipts
-- The event id stays, so that a repeated delivery is still a duplicate. Without its payload, an event needs no order.
UPDATE webhook_receipts
SET object_id = NULL, correlation_id = NULL, delivery_id = NULL,
    last_error = CASE WHEN last_error IS NOT NULL THEN '(erased)' END,
    serial_key = CASE WHEN status = 'processing' THEN serial_key END
WHERE id = ANY(CAST(:receipts AS text)::bigint[])

-- name: erase_attempts
UPDATE webhook_past_attempts SET error = '(erased)', traceback = NULL
WHERE receipt_id = ANY(CAST(:receipts AS text)::bigint[]) AND (error IS NOT NULL OR traceback IS NOT NULL)

-- name: erase_tenant_effects
DELETE FROM webhook_effects WHERE scope = :scope
RETURNING id

-- name: erase_tenant_entities
-- A scope may have a consumer behind an @. The character after @ is A.
DELETE FROM webhook_entities WHERE scope = :scope OR scope > :scope || '@' AND scope < :scope || 'A'
RETURNING id

-- name: erase_tenant_rejections
DELETE FROM webhook_rejections WHERE source = :source AND tenant = :tenant
RETURNING id
