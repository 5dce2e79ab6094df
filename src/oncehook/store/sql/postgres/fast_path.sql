-- name: fast_path_state
-- If another standby becomes synchronous, it may lack a receipt that is remembered.
SELECT i.name || ' ' || current_setting('synchronous_standby_names') AS identity, f.secret, f.deleted_up_to, i.receipts
FROM ({> identity_row}) i CROSS JOIN webhook_fast_path f WHERE NOT i.is_standby
