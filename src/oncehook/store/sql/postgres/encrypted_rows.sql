-- name: encryption_keys
SELECT key_id, proof, first_used_at FROM webhook_encryption_keys ORDER BY first_used_at, key_id

-- name: register_key
INSERT INTO webhook_encryption_keys (key_id, proof) VALUES (:key_id, :proof) ON CONFLICT (key_id) DO NOTHING

-- name: unregister_key
DELETE FROM webhook_encryption_keys WHERE key_id = :key_id

-- name: encrypted_counts
-- How many rows of each table each key has encrypted. In a sealed text, the id of its key follows the prefix.
SELECT "table", key_id, count(*) AS number FROM (
    SELECT 'webhook_payloads' AS "table", key_id FROM webhook_payloads WHERE key_id IS NOT NULL
    UNION ALL
    SELECT "table", split_part(substr(value, strpos(value, :sealed) + length(:sealed)), ':', 1) FROM (
        SELECT 'webhook_receipts' AS "table", last_error AS value FROM webhook_receipts
        UNION ALL SELECT 'webhook_past_attempts', error FROM webhook_past_attempts
        UNION ALL SELECT 'webhook_effects', coalesce(args, last_error) FROM webhook_effects
        UNION ALL SELECT 'webhook_sources', secrets FROM webhook_sources
        UNION ALL SELECT 'webhook_tenants', secrets FROM webhook_tenants
    ) AS texts WHERE strpos(value, :sealed) > 0
) AS uses
GROUP BY "table", key_id ORDER BY "table", key_id

-- name: payloads_to_reseal
-- Payloads that another key than the first of the key ring has encrypted.
SELECT p.receipt_id AS id, p.body, p.headers, p.key_id, p.object, r.source, r.tenant, r.event_id
FROM webhook_payloads p JOIN webhook_receipts r ON r.id = p.receipt_id
WHERE p.receipt_id > :after AND p.key_id IS NOT NULL AND p.key_id <> :key_id
ORDER BY p.receipt_id LIMIT :limit

-- name: lock_payloads
SELECT receipt_id AS id FROM webhook_payloads WHERE receipt_id = ANY(CAST(:ids AS text)::bigint[]) ORDER BY receipt_id
FOR UPDATE SKIP LOCKED

-- name: reseal_payloads
UPDATE webhook_payloads SET body = :body, headers = :headers, key_id = :key_id, object = :object
WHERE receipt_id = :id AND headers = :old_headers
RETURNING receipt_id

-- name: receipts_to_reseal
-- Receipts whose error text another key has sealed. `current` is the prefix of a text that the first key has sealed.
SELECT id, source, last_error FROM webhook_receipts
WHERE id > :after AND strpos(last_error, :sealed) > 0 AND strpos(last_error, :current) = 0
ORDER BY id LIMIT :limit

-- name: lock_receipts
SELECT id FROM webhook_receipts WHERE id = ANY(CAST(:ids AS text)::bigint[]) ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: reseal_receipts
UPDATE webhook_receipts SET last_error = :last_error WHERE id = :id AND last_error = :old_last_error RETURNING id

-- name: attempts_to_reseal
SELECT a.id, r.source, a.error, a.traceback
FROM webhook_past_attempts a JOIN webhook_receipts r ON r.id = a.receipt_id
WHERE a.id > :after AND strpos(a.error, :sealed) > 0 AND strpos(a.error, :current) = 0
ORDER BY a.id LIMIT :limit

-- name: lock_attempts
SELECT id FROM webhook_past_attempts WHERE id = ANY(CAST(:ids AS text)::bigint[]) ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: reseal_attempts
UPDATE webhook_past_attempts SET error = :error, traceback = :traceback
WHERE id = :id AND error = :old_error AND traceback IS NOT DISTINCT FROM :old_traceback
RETURNING id

-- name: effects_to_reseal
SELECT id, source, scope, key, args, last_error FROM webhook_effects
WHERE id > :after AND (
    strpos(args, :sealed) > 0 AND strpos(args, :current) = 0 OR strpos(last_error, :sealed) > 0 AND strpos(last_error, :current) = 0
)
ORDER BY id LIMIT :limit

-- name: lock_effects
SELECT id FROM webhook_effects WHERE id = ANY(CAST(:ids AS text)::bigint[]) ORDER BY id
FOR UPDATE SKIP LOCKED

-- name: reseal_effects
UPDATE webhook_effects SET args = :args, last_error = :last_error
WHERE id = :id AND args IS NOT DISTINCT FROM :old_args AND last_error IS NOT DISTINCT FROM :old_last_error
RETURNING id

-- name: sources_to_reseal
SELECT name, secrets FROM webhook_sources WHERE strpos(secrets, :sealed) > 0 AND strpos(secrets, :current) = 0 ORDER BY name

-- name: reseal_sources
UPDATE webhook_sources SET secrets = :secrets WHERE name = :name AND secrets = :old_secrets RETURNING name

-- name: tenants_to_reseal
SELECT source, tenant, secrets FROM webhook_tenants
WHERE (source, tenant) > (:source, :tenant) AND strpos(secrets, :sealed) > 0 AND strpos(secrets, :current) = 0
ORDER BY source, tenant LIMIT :limit

-- name: reseal_tenants
UPDATE webhook_tenants SET secrets = :secrets
WHERE source = :source AND tenant = :tenant AND secrets = :old_secrets
RETURNING tenant

-- name: payloads_of_key
SELECT receipt_id FROM webhook_payloads WHERE key_id = :key_id ORDER BY receipt_id LIMIT :limit

-- name: erase_receipts_of_key
-- `current` is the prefix of a text that the key has sealed.
UPDATE webhook_receipts SET last_error = '(erased)'
WHERE id IN (SELECT id FROM webhook_receipts WHERE strpos(last_error, :current) > 0 ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING id

-- name: erase_attempts_of_key
UPDATE webhook_past_attempts SET error = '(erased)', traceback = NULL
WHERE id IN (SELECT id FROM webhook_past_attempts WHERE strpos(error, :current) > 0 ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED)
RETURNING id

-- name: erase_effects_of_key
UPDATE webhook_effects SET args = NULL, last_error = CASE WHEN last_error IS NOT NULL THEN '(erased)' END
WHERE id IN (
    SELECT id FROM webhook_effects WHERE strpos(args, :current) > 0 OR strpos(last_error, :current) > 0
    ORDER BY id LIMIT :limit FOR UPDATE SKIP LOCKED
)
RETURNING id
