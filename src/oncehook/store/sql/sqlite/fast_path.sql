-- name: fast_path_state
SELECT i.name AS identity, f.secret, f.deleted_up_to, i.receipts FROM ({> identity_row}) i CROSS JOIN webhook_fast_path f
