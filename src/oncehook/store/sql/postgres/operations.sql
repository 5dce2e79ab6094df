-- name: replay_now
SELECT now() AS now

-- name: replay_page
{> selected_receipts}

-- name: selected_receipts
SELECT r.id AS receipt, r.source, r.tenant, r.consumer, r.main_id, r.provider, r.event_id, r.type, r.object_id, r.occurred_at, r.received_at, r.status,
       r.attempts, r.next_attempt_at, r.processed_at, r.failed_at, r.last_error, r.correlation_id, r.delivery_id, r.origin, r.replays,
       CASE WHEN r.status IN ('received', 'retrying') THEN r.unhandled_at END AS unhandled_at,
       (SELECT count(*) FROM webhook_deliveries d WHERE d.receipt_id = coalesce(r.main_id, r.id)) AS duplicates,
       EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(r.main_id, r.id) AND p.day = (r.received_at AT TIME ZONE 'UTC')::date) AS has_payload
FROM webhook_receipts r
WHERE r.id > :after::bigint
  AND r.id = ANY(CAST(:receipts AS text)::bigint[])                          --? receipts
  AND r.source = :source                                       --? source
  AND r.tenant = :tenant AND r.tenant <> ''                   --? tenant
  AND r.consumer = :consumer                                   --? consumer
  AND (r.type LIKE :type OR r.type LIKE :type || '.%')         --? type
  AND r.object_id = :object                                    --? object
  AND r.status = :status                                       --? status
  AND r.unhandled_at IS NOT NULL AND r.status IN ('received', 'retrying') AND CAST(:unhandled AS boolean)  --? unhandled
  AND r.received_at >= :since                                  --? since
  AND r.received_at < :until                                   --? until
  AND r.received_at <= :horizon                                --? horizon
  AND (r.version = :handled_by OR EXISTS (SELECT 1 FROM webhook_past_attempts a WHERE a.version = :handled_by AND a.receipt_id = r.id))  --? handled_by
  AND (r.event_id = :search OR r.object_id = :search OR r.delivery_id = :search OR r.correlation_id = :search OR EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(r.main_id, r.id) AND p.day = (r.received_at AT TIME ZONE 'UTC')::date AND position(convert_to(:search, 'UTF8') IN p.body) > 0))  --? search
ORDER BY r.id
LIMIT :limit::bigint

-- name: replay_counts
SELECT status, type IS NOT NULL AS has_type, has_payload, count(*) AS receipts FROM (
{> selected_receipts}
) AS matching
GROUP BY status, type IS NOT NULL, has_payload

-- name: replay
-- A replayed event is due now, after the events that are already waiting. Its age counts from the replay.
WITH chosen AS (
    SELECT r.id, r.status, r.attempts, r.started_at, r.processed_at, r.outcome, r.handler, r.version, r.worker
    FROM webhook_receipts r
    WHERE r.id = ANY(CAST(:receipts AS text)::bigint[])
      AND r.status IN ('failed', 'processed', 'ignored') AND r.type IS NOT NULL
      AND EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(r.main_id, r.id) AND p.day = (r.received_at AT TIME ZONE 'UTC')::date)
    ORDER BY r.id FOR UPDATE OF r SKIP LOCKED
), recorded AS (  -- keep the successful attempt, which is no longer the last
    INSERT INTO webhook_past_attempts (receipt_id, number, started_at, ended_at, outcome, handler, version, worker)
    SELECT id, attempts, started_at, processed_at, outcome, handler, version, worker
    FROM chosen WHERE status = 'processed' AND started_at IS NOT NULL ORDER BY id
)
UPDATE webhook_receipts r
SET status = 'received', attempts = 0, crashes = 0, replays = replays + 1, is_inline = false, next_attempt_at = now(), leased_at = now(),
    replayed_at = now(), processed_at = NULL, failed_at = NULL, unhandled_at = NULL, started_at = NULL, last_error = NULL, outcome = NULL,
    handler = NULL, version = NULL
FROM chosen WHERE r.id = chosen.id AND r.status IN ('failed', 'processed', 'ignored')
RETURNING r.id

-- name: retry_now
WITH chosen AS (
    SELECT id FROM webhook_receipts
    WHERE id = ANY(CAST(:receipts AS text)::bigint[]) AND status = 'retrying' AND NOT is_inline
    ORDER BY id FOR UPDATE SKIP LOCKED
)
UPDATE webhook_receipts r SET next_attempt_at = least(r.next_attempt_at, now()), leased_at = now()
FROM chosen WHERE r.id = chosen.id AND r.status = 'retrying'
RETURNING r.id

-- name: audit
INSERT INTO webhook_audit (actor, action, detail) VALUES (:actor, :action, :detail)

-- name: run_outcomes
SELECT r.status, count(*) AS receipts
FROM webhook_audit a, json_array_elements_text(a.detail::json -> 'receipts') AS e (id)
JOIN webhook_receipts r ON r.id = e.id::bigint
WHERE (a.detail::json ->> 'run') = :run AND a.action IN ('replay', 'replay_batch')
GROUP BY r.status

-- name: receipt_replays
SELECT at, actor FROM webhook_audit
WHERE action IN ('replay', 'replay_batch')
  AND EXISTS (SELECT 1 FROM json_array_elements_text(detail::json -> 'receipts') AS e (id) WHERE e.id = (:receipt::bigint)::text)
ORDER BY id

-- name: audit_entries
SELECT id, at, actor, action, detail FROM webhook_audit
WHERE action NOT IN ('replay_batch', 'replay_ended')  -- people see one row per replay
  AND id < :before                                             --? before
ORDER BY id DESC LIMIT :limit

-- name: run_entries
SELECT CASE WHEN action = 'replay_batch' THEN 'replay' ELSE action END AS action, count(*) AS rows, sum((detail::json ->> 'count')::bigint)::bigint AS number, min(at) AS at, max(at) AS last_at,
       min(actor) AS actor, max(CASE WHEN action NOT IN ('replay', 'replay_batch') THEN detail END) AS detail
FROM webhook_audit WHERE action IN ('replay', 'replay_batch', 'replay_started', 'replay_ended') AND detail::json ->> 'run' = :run
GROUP BY 1
