-- On PostgreSQL the mark becomes routines; SQLite keeps prepared statements by itself.

-- Only versions that were set are ever looked for: one index less to write for every attempt where none is.
DROP INDEX webhook_attempts_version;
CREATE INDEX webhook_attempts_version ON webhook_attempts (version, receipt_id) WHERE version IS NOT NULL;
