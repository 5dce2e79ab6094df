-- name: pause
INSERT INTO webhook_pauses (source, actor) VALUES (:source, :actor)
ON CONFLICT (source) DO NOTHING
RETURNING source

-- name: resume
DELETE FROM webhook_pauses WHERE source = :source
RETURNING source

-- name: pauses
SELECT source, paused_at, actor FROM webhook_pauses ORDER BY source

-- name: due_window
-- Of the next receipts that are due from `after` on: where those that are not paused begin, where all of them end, how many
-- they are, and a moment ago: what commits late is due a little before what is seen already.
SELECT min(due) FILTER (WHERE source <> ALL (ARRAY(SELECT source FROM webhook_pauses))) AS first, max(due) AS last,
       count(*) AS number, now() - interval '1 second' AS lately
FROM (
    SELECT source, coalesce(next_attempt_at, received_at) AS due FROM webhook_receipts
    WHERE status IN ('received', 'retrying') AND NOT is_inline AND serial_key IS NULL
      AND coalesce(next_attempt_at, received_at) <= now()
      AND coalesce(next_attempt_at, received_at) >= CAST(CAST(:after AS text) AS timestamptz)
    ORDER BY coalesce(next_attempt_at, received_at), id
    LIMIT :size
) waiting
