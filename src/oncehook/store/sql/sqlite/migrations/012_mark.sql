-- An attempt that ended well is the last of its receipt, and the ledger's own row has it: a row of history beside it would
-- double what a mark writes. The others have rows in webhook_past_attempts, and the view has them all.
ALTER TABLE webhook_receipts ADD COLUMN started_at TEXT;
ALTER TABLE webhook_receipts ADD COLUMN version TEXT;
ALTER TABLE webhook_attempts RENAME TO webhook_past_attempts;
DROP INDEX webhook_attempts_receipt;
DROP INDEX webhook_attempts_version;
DROP INDEX webhook_attempts_failed;
CREATE INDEX webhook_past_attempts_receipt ON webhook_past_attempts (receipt_id, id);
CREATE INDEX webhook_past_attempts_version ON webhook_past_attempts (version, receipt_id) WHERE version IS NOT NULL;
CREATE INDEX webhook_past_attempts_failed ON webhook_past_attempts (ended_at)
    WHERE outcome IN ('retrying', 'failed', 'crashed');

-- Ids grow with the attempts of a receipt: those of the ledger come after all others. What was processed before this
-- migration has no started_at, and its row among the others.
CREATE VIEW webhook_attempts AS
SELECT id, receipt_id, number, started_at, ended_at, outcome, error, traceback, handler, version, worker
FROM webhook_past_attempts
UNION ALL
SELECT 4611686018427387904 + id, id, attempts, started_at, processed_at, outcome, NULL, NULL, handler, version, worker
FROM webhook_receipts WHERE status = 'processed' AND started_at IS NOT NULL;
