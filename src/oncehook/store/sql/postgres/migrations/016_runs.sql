-- The rows of one replay, of which each batch is one: what became of a replay is counted by them.
CREATE INDEX webhook_audit_run ON webhook_audit ((detail::json ->> 'run'));
