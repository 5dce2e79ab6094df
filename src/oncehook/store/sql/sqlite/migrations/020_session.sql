-- Nothing to change here: SQLite has no sessions on a server.
SELECT 1;
