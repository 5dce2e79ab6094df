-- Nothing to change here: SQLite reads a table's constraints once.
SELECT 1;
