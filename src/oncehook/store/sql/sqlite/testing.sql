-- name: time_columns
-- All columns that hold a time, by their names: times are texts in SQLite.
SELECT m.name AS table_name, c.name AS column_name
FROM sqlite_master m JOIN pragma_table_info(m.name) c
WHERE m.type = 'table' AND m.name GLOB 'webhook_*' AND (c.name = 'at' OR c.name GLOB '*_at' OR c.name GLOB '*_until')
ORDER BY m.name, c.cid

-- name: move_table_back
UPDATE {table} SET {moves}

-- name: move_column_back
{column} = strftime('%Y-%m-%dT%H:%M:%f000Z', {column}, '-' || :seconds || ' seconds')
