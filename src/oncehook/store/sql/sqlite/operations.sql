-- name: replay_now
SELECT strftime('%Y-%m-%dT%H:%M:%f000Z', 'now') AS now

-- name: replay_page
{> selected_receipts}

-- name: selected_receipts
SELECT r.id AS receipt, r.source, r.tenant, r.consumer, r.main_id, r.provider, r.event_id, r.type, r.object_id, r.occurred_at, r.received_at, r.status,
       r.attempts, r.next_attempt_at, r.processed_at, r.failed_at, r.last_error, r.correlation_id, r.delivery_id, r.origin, r.replays,
       CASE WHEN r.status IN ('received', 'retrying') THEN r.unhandled_at END AS unhandled_at,
       (SELECT count(*) FROM webhook_deliveries d WHERE d.receipt_id = coalesce(r.main_id, r.id)) AS duplicates,
       EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(r.main_id, r.id)) AS has_payload
FROM webhook_receipts r
WHERE r.id > :after
  AND r.id IN (SELECT value FROM json_each(:receipts))         --? receipts
  AND r.source = :source                                       --? source
  AND r.tenant = :tenant AND r.tenant <> ''                   --? tenant
  AND r.consumer = :consumer                                   --? consumer
  AND (r.type GLOB :type OR r.type GLOB :type || '.*')         --? type
  AND r.object_id = :object                                    --? object
  AND r.status = :status                                       --? status
  AND r.unhandled_at IS NOT NULL AND r.status IN ('received', 'retrying') AND :unhandled  --? unhandled
  AND r.received_at >= :since                                  --? since
  AND r.received_at < :until                                   --? until
  AND r.received_at <= :horizon                                --? horizon
  AND (r.version = :handled_by OR EXISTS (SELECT 1 FROM webhook_past_attempts a WHERE a.version = :handled_by AND a.receipt_id = r.id))  --? handled_by
  AND (r.event_id = :search OR r.object_id = :search OR r.delivery_id = :search OR r.correlation_id = :search OR EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(r.main_id, r.id) AND instr(p.body, CAST(:search AS BLOB)) > 0))  --? search
ORDER BY r.id
LIMIT :limit

-- name: replay_counts
SELECT status, type IS NOT NULL AS has_type, has_payload, count(*) AS receipts FROM (
{> selected_receipts}
) AS matching
GROUP BY status, type IS NOT NULL, has_payload

-- name: keep_attempts
-- Keeps the successful attempts of the replayed receipts, which are no longer their last.
INSERT INTO webhook_past_attempts (receipt_id, number, started_at, ended_at, outcome, handler, version, worker)
SELECT r.id, r.attempts, r.started_at, r.processed_at, r.outcome, r.handler, r.version, r.worker
FROM webhook_receipts r
WHERE r.id IN (SELECT value FROM json_each(:receipts)) AND r.status = 'processed' AND r.started_at IS NOT NULL
  AND r.type IS NOT NULL AND EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(r.main_id, r.id))
ORDER BY r.id

-- name: replay
-- A replayed event is due now, after the events that are already waiting. Its age counts from the replay.
UPDATE webhook_receipts
SET status = 'received', attempts = 0, crashes = 0, replays = replays + 1, is_inline = 0,
    next_attempt_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'), leased_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    replayed_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now'),
    processed_at = NULL, failed_at = NULL, unhandled_at = NULL, started_at = NULL, last_error = NULL, outcome = NULL,
    handler = NULL, version = NULL
WHERE id IN (SELECT value FROM json_each(:receipts))
  AND status IN ('failed', 'processed', 'ignored') AND type IS NOT NULL
  AND EXISTS (SELECT 1 FROM webhook_payloads p WHERE p.receipt_id = coalesce(webhook_receipts.main_id, webhook_receipts.id))
RETURNING id

-- name: retry_now
UPDATE webhook_receipts SET next_attempt_at = min(next_attempt_at, strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')), leased_at = strftime('%Y-%m-%dT%H:%M:%f000Z', 'now')
WHERE id IN (SELECT value FROM json_each(:receipts)) AND status = 'retrying' AND NOT is_inline
RETURNING id

-- name: audit
INSERT INTO webhook_audit (actor, action, detail) VALUES (:actor, :action, :detail)

-- name: run_outcomes
SELECT r.status, count(*) AS receipts
FROM webhook_audit a, json_each(a.detail, '$.receipts') AS e JOIN webhook_receipts r ON r.id = e.value
WHERE a.detail ->> 'run' = :run AND a.action IN ('replay', 'replay_batch')
GROUP BY r.status

-- name: receipt_replays
SELECT at, actor FROM webhook_audit
WHERE action IN ('replay', 'replay_batch') AND EXISTS (SELECT 1 FROM json_each(detail, '$.receipts') WHERE value = :receipt)
ORDER BY id

-- name: audit_entries
SELECT id, at, actor, action, detail FROM webhook_audit
WHERE action NOT IN ('replay_batch', 'replay_ended')  -- people see one row per replay
  AND id < :before                                             --? before
ORDER BY id DESC LIMIT :limit

-- name: run_entries
SELECT CASE WHEN action = 'replay_batch' THEN 'replay' ELSE action END AS action, count(*) AS rows, sum(detail ->> 'count') AS number, min(at) AS at, max(at) AS last_at,
       min(actor) AS actor, max(CASE WHEN action NOT IN ('replay', 'replay_batch') THEN detail END) AS detail
FROM webhook_audit WHERE action IN ('replay', 'replay_batch', 'replay_started', 'replay_ended') AND detail ->> 'run' = :run
GROUP BY 1
