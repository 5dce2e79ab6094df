-- name: settings_revision
SELECT coalesce(max(number), 0) AS number FROM webhook_revisions WHERE name = 'settings'

-- name: next_settings_revision
-- Locks the row until the transaction ends. So changes are serialized, and their numbers become visible in order.
INSERT INTO webhook_revisions AS r (name, number) VALUES ('settings', 1)
ON CONFLICT (name) DO UPDATE SET number = r.number + 1
RETURNING number

-- name: managed_sources
SELECT name, settings, secrets, revision, created_at, updated_at, removed_at, actor, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') AS now FROM webhook_sources
WHERE revision > :after
  AND name = :name  --? name
ORDER BY name

-- name: put_source
INSERT INTO webhook_sources AS s (name, settings, secrets, revision, actor)
VALUES (:name, :settings, :secrets, :revision, :actor)
ON CONFLICT (name) DO UPDATE
SET settings = excluded.settings, secrets = excluded.secrets, revision = excluded.revision, actor = excluded.actor,
    created_at = CASE WHEN s.removed_at IS NULL THEN s.created_at ELSE strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END, updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    removed_at = CASE WHEN :is_removed THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END

-- name: managed_tenant
SELECT source, tenant, secrets, revision, created_at, updated_at, removed_at, actor, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') AS now FROM webhook_tenants
WHERE source = :source AND tenant = :tenant

-- name: managed_tenants
SELECT source, tenant, secrets, revision, created_at, updated_at, removed_at, actor, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') AS now FROM webhook_tenants
WHERE source = :source AND removed_at IS NULL AND tenant > :after
  AND tenant >= :search AND substr(tenant, 1, length(:search)) = :search  --? search
ORDER BY tenant
LIMIT :limit

-- name: changed_tenants
SELECT source, tenant, revision FROM webhook_tenants WHERE revision > :after
ORDER BY revision
LIMIT :limit

-- name: put_tenant
INSERT INTO webhook_tenants AS t (source, tenant, secrets, revision, actor)
VALUES (:source, :tenant, :secrets, :revision, :actor)
ON CONFLICT (source, tenant) DO UPDATE
SET secrets = excluded.secrets, revision = excluded.revision, actor = excluded.actor,
    created_at = CASE WHEN t.removed_at IS NULL THEN t.created_at ELSE strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END, updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    removed_at = CASE WHEN :is_removed THEN strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') END

-- name: remove_tenants
-- A source takes its tenants with it, so that their secrets are erased too.
UPDATE webhook_tenants SET secrets = '', revision = :revision, actor = :actor,
    updated_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), removed_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE source = :source AND removed_at IS NULL

-- name: sealing_keys
-- The third part of a sealed text is the id of its key.
SELECT DISTINCT substr(secrets, 17, instr(substr(secrets, 17), ':') - 1) AS key FROM webhook_sources WHERE secrets <> ''
UNION
SELECT DISTINCT substr(secrets, 17, instr(substr(secrets, 17), ':') - 1) FROM webhook_tenants WHERE secrets <> ''
