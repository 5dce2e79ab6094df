-- name: time_columns
-- All columns that hold a time.
SELECT c.table_name::text AS table_name, c.column_name::text AS column_name
FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.table_schema = current_schema() AND c.table_name ~ '^webhook_' AND t.table_type = 'BASE TABLE'
  AND c.data_type = 'timestamp with time zone'
ORDER BY c.table_name, c.ordinal_position

-- name: move_table_back
UPDATE {table} SET {moves}

-- name: move_column_back
{column} = {column} - CAST(:seconds AS double precision) * interval '1 second'

-- name: days_received
SELECT DISTINCT (received_at AT TIME ZONE 'UTC')::date AS day FROM webhook_receipts

-- name: move_payloads
UPDATE webhook_payloads p SET day = (r.received_at AT TIME ZONE 'UTC')::date
FROM webhook_receipts r WHERE r.id = p.receipt_id AND p.day <> (r.received_at AT TIME ZONE 'UTC')::date;
UPDATE webhook_payload_objects o SET day = (r.received_at AT TIME ZONE 'UTC')::date
FROM webhook_receipts r WHERE r.id = o.receipt_id

-- name: create_database
CREATE DATABASE {name}

-- name: drop_database
DROP DATABASE IF EXISTS {name} WITH (FORCE)
