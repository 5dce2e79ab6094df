-- name: consumers
SELECT name, source, patterns, settings, revision, registered_at, seen_at FROM webhook_consumers ORDER BY name, source

-- name: put_consumer
INSERT INTO webhook_consumers (name, source, patterns, settings, revision)
VALUES (:name, :source, :patterns, :settings, :revision)
ON CONFLICT (name, source) DO UPDATE
SET patterns = excluded.patterns, settings = excluded.settings, revision = excluded.revision

-- name: renew_consumers
UPDATE webhook_consumers SET seen_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE name IN (SELECT value FROM json_each(:names))
