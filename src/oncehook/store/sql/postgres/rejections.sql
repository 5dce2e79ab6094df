-- name: keep_rejection
INSERT INTO webhook_rejections (source, tenant, reason, detail, method, query, headers, body, size)
VALUES (:source, :tenant, :reason, :detail, :method, :query, :headers, :body, :size)

-- name: trim_rejections
DELETE FROM webhook_rejections WHERE source = :source AND id <= (
    SELECT id FROM webhook_rejections WHERE source = :source ORDER BY id DESC OFFSET :limit LIMIT 1
)

-- name: rejections
SELECT id, source, tenant, rejected_at, reason, detail, method, query, headers, body, size FROM webhook_rejections
WHERE id > 0
  AND source = :source  --? source
ORDER BY id DESC
LIMIT :limit

-- name: note_secret
INSERT INTO webhook_secrets AS s (source, secret, verified) VALUES (:source, :secret, :verified)
ON CONFLICT (source, secret) DO UPDATE SET verified = s.verified + excluded.verified, last_used_at = now()

-- name: secrets_used
SELECT source, secret, verified, first_used_at, last_used_at, now() AS now FROM webhook_secrets ORDER BY source, secret
