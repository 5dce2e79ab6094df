-- name: settings_revision
SELECT coalesce(max(number), 0) AS number FROM webhook_revisions WHERE name = 'settings'

-- name: next_settings_revision
-- Locks the row until the transaction ends. So changes are serialized, and their numbers become visible in order.
INSERT INTO webhook_revisions AS r (name, number) VALUES ('settings', 1)
ON CONFLICT (name) DO UPDATE SET number = r.number + 1
RETURNING number

-- name: managed_sources
SELECT name, settings, secrets, revision, created_at, updated_at, removed_at, actor, now() AS now FROM webhook_sources
WHERE revision > CAST(:after AS bigint)
  AND name = :name  --? name
ORDER BY name

-- name: put_source
INSERT INTO webhook_sources AS s (name, settings, secrets, revision, actor)
VALUES (:name, :settings, :secrets, :revision, :actor)
ON CONFLICT (name) DO UPDATE
SET settings = excluded.settings, secrets = excluded.secrets, revision = excluded.revision, actor = excluded.actor,
    created_at = CASE WHEN s.removed_at IS NULL THEN s.created_at ELSE now() END, updated_at = now(),
    removed_at = CASE WHEN CAST(:is_removed AS boolean) THEN now() END

-- name: managed_tenant
SELECT source, tenant, secrets, revision, created_at, updated_at, removed_at, actor, now() AS now FROM webhook_tenants
WHERE source = :source AND tenant = :tenant

-- name: managed_tenants
SELECT source, tenant, secrets, revision, created_at, updated_at, removed_at, actor, now() AS now FROM webhook_tenants
WHERE source = :source AND removed_at IS NULL AND tenant > :after
  AND tenant >= :search AND starts_with(tenant, CAST(:search AS text))  --? search
ORDER BY tenant
LIMIT :limit

-- name: changed_tenants
SELECT source, tenant, revision FROM webhook_tenants WHERE revision > CAST(:after AS bigint)
ORDER BY revision
LIMIT :limit

-- name: put_tenant
INSERT INTO webhook_tenants AS t (source, tenant, secrets, revision, actor)
VALUES (:source, :tenant, :secrets, :revision, :actor)
ON CONFLICT (source, tenant) DO UPDATE
SET secrets = excluded.secrets, revision = excluded.revision, actor = excluded.actor,
    created_at = CASE WHEN t.removed_at IS NULL THEN t.created_at ELSE now() END, updated_at = now(),
    removed_at = CASE WHEN CAST(:is_removed AS boolean) THEN now() END

-- name: remove_tenants
-- A source takes its tenants with it, so that their secrets are erased too.
UPDATE webhook_tenants SET secrets = '', revision = :revision, actor = :actor,
    updated_at = now(), removed_at = now()
WHERE source = :source AND removed_at IS NULL

-- name: sealing_keys
-- The third part of a sealed text is the id of its key.
SELECT DISTINCT split_part(secrets, ':', 3) AS key FROM webhook_sources WHERE secrets <> ''
UNION
SELECT DISTINCT split_part(secrets, ':', 3) FROM webhook_tenants WHERE secrets <> ''
