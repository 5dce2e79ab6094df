-- The oldest waiting event of each source, found by one probe of an index for each source however many events wait.
CREATE INDEX webhook_receipts_unfinished ON webhook_receipts (source, (coalesce(replayed_at, received_at)))
    WHERE status IN ('received', 'retrying') AND NOT is_inline;
