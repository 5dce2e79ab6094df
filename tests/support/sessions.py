"""Everything that SQL can leave in a session of PostgreSQL or SQLite, and queries that find it."""

ENTER = "set_config('search_path', 'tenant_a, public', false)"

LEFT = {
    "pg_settings": "UPDATE pg_settings SET setting = 'tenant_a, public' WHERE name = 'search_path'",
    "escaped name": "SELECT U&\"set_config\" UESCAPE '!' ('search_path', 'tenant_a, public', false)",
    "function named by a keyword": "SELECT set('search_path', 'tenant_a, public')",
    "overloaded function": "SELECT round('tenant_a, public'::text)",
    "attribute notation": "SELECT a.enter FROM acct a",
    "domain": "SELECT 'tenant_a'::tenant_name",
    "temporary table by an escaped name": "SELECT 'left by A' AS name INTO U&\"pg\\005ftemp\".customers",
    "view": "SELECT s FROM enter_a",
    "trigger": "INSERT INTO watched VALUES (1)",
    "deferred trigger": "INSERT INTO watched_late VALUES (1)",
    "sequence": "INSERT INTO numbered (x) VALUES (1)",
    "set_config": f"SELECT {ENTER}",
    "set_config after a comment": "SELECT set_config/**/ --\n('search_path', 'tenant_a, public', false)",
    "set_config quoted": "SELECT \"set_config\"('search_path', 'tenant_a, public', false)",
    "set_config qualified": f"SELECT pg_catalog . {ENTER}",
    "set_config in a CTE": f"WITH entered AS MATERIALIZED (SELECT {ENTER}) SELECT * FROM entered",
    "set_config explained": f"EXPLAIN ANALYZE SELECT {ENTER}",
    "SET": "SET search_path TO tenant_a, public",
    "SET of the app's own": "SET app.who = 'A'",
    "two statements": "SELECT 1; SET search_path TO tenant_a, public",
    "DO": "DO $$ BEGIN PERFORM enter(); END $$",
    "COPY": "COPY (SELECT enter()) TO PROGRAM 'cat > /dev/null'",
    "role": "SET ROLE other_role",
    "session authorization": "SET SESSION AUTHORIZATION other_role",
    "temporary table": "CREATE TEMP TABLE customers AS SELECT 'left by A' AS name",
    "temporary view": "CREATE TEMP VIEW customers AS SELECT 'left by A' AS name",
    "prepared statement": "PREPARE mine AS SELECT 1",
    "prepared statement of a function": "SELECT prepare()",
    "cursor": "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
    "cursor that is run by the COMMIT": "DECLARE mine CURSOR WITH HOLD FOR SELECT enter()",
    "LISTEN": "LISTEN mine",
    "advisory lock": "SELECT pg_advisory_lock(7)",
    "read-only sessions": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "isolation level of the session": "SELECT set_config('default_transaction_isolation', 'serializable', false)",
    "isolation level": "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
}
"""What a handler may leave in its session: names and statements."""

OBJECTS = [
    "CREATE TABLE IF NOT EXISTS ledger (note text PRIMARY KEY)",
    "CREATE TABLE customers (name text)",
    "INSERT INTO customers VALUES ('of everybody')",
    "CREATE SCHEMA tenant_a",
    "CREATE TABLE tenant_a.customers (name text)",
    "INSERT INTO tenant_a.customers VALUES ('secret of A')",
    "CREATE TABLE numbered (id serial, x int)",
    f"CREATE FUNCTION enter() RETURNS text LANGUAGE sql AS $$ SELECT {ENTER} $$",
    'CREATE FUNCTION "set"(text, text) RETURNS text LANGUAGE sql AS $$ SELECT set_config($1, $2, false) $$',
    "CREATE FUNCTION round(text) RETURNS text LANGUAGE sql AS $$ SELECT set_config('search_path', $1, false) $$",
    "CREATE TABLE acct (id int)",
    "INSERT INTO acct VALUES (1)",
    f"CREATE FUNCTION enter(acct) RETURNS text LANGUAGE sql AS $$ SELECT {ENTER} $$",
    "CREATE DOMAIN tenant_name AS text CHECK (enter() IS NOT NULL)",
    "CREATE VIEW enter_a AS SELECT enter() AS s",
    "CREATE TABLE watched (x int)",
    "CREATE TABLE watched_late (x int)",
    "CREATE FUNCTION enters() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM enter(); RETURN NULL; END $$",
    "CREATE TRIGGER enters AFTER INSERT ON watched FOR EACH ROW EXECUTE FUNCTION enters()",
    "CREATE CONSTRAINT TRIGGER enters AFTER INSERT ON watched_late DEFERRABLE INITIALLY DEFERRED "
    "FOR EACH ROW EXECUTE FUNCTION enters()",
    """CREATE FUNCTION prepare() RETURNS int LANGUAGE plpgsql AS
       $$ BEGIN EXECUTE 'PREPARE mine AS SELECT 1'; RETURN 1; END $$""",
    """CREATE FUNCTION last_number() RETURNS text LANGUAGE plpgsql AS
       $$ BEGIN RETURN lastval(); EXCEPTION WHEN object_not_in_prerequisite_state THEN RETURN 'none'; END $$""",
]
"""The tables and functions that these statements use."""

FOUND = """
    SELECT (SELECT name FROM customers) AS customer, current_setting('search_path') AS path, current_user AS who,
           session_user AS session_who, coalesce(nullif(current_setting('app.who', true), ''), 'unset') AS app,
           (SELECT count(*) FROM pg_settings WHERE source = 'session' AND name NOT LIKE 'transaction_%') AS settings,
           (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()) AS locks,
           (SELECT count(*) FROM pg_class WHERE relnamespace = pg_my_temp_schema()) AS tables,
           (SELECT count(*) FROM pg_cursors WHERE is_holdable) AS cursors,
           (SELECT count(*) FROM pg_listening_channels()) AS channels,
           (SELECT count(*) FROM pg_prepared_statements WHERE from_sql AND name <> 'oncehook') AS statements,
           last_number() AS last_number, current_setting('transaction_isolation') AS isolation,
           current_setting('transaction_read_only') AS read_only
"""
"""A query that shows what an earlier handler has left."""

CREATE_ROLE = "DO $$ BEGIN CREATE ROLE other_role; EXCEPTION WHEN duplicate_object THEN NULL; END $$"
"""Creates the role that these statements set. Roles are shared by all databases of the server."""

SQLITE_LEFT = {
    "temporary table": ["CREATE TEMP TABLE IF NOT EXISTS scratch (who TEXT)", "INSERT INTO scratch VALUES ('A')"],
    "temporary view": ["CREATE TEMP VIEW customers AS SELECT 'forged by A' AS name"],
    "temporary trigger": [
        "CREATE TEMP TRIGGER forges AFTER INSERT ON main.ledger BEGIN UPDATE ledger SET note = 'forged by A'; END"
    ],
    "pragma": ["PRAGMA case_sensitive_like = ON"],
    "pragma in capitals and comments": ["/* harmless */ pragma\nRECURSIVE_TRIGGERS = ON"],
    "another pragma": ["PRAGMA ignore_check_constraints = ON"],
    "attached database": ["ATTACH ':memory:' AS other"],
    "row number": ["INSERT INTO ledger VALUES ('of A')"],
}
"""What a handler may leave in its SQLite connection: names and statements."""

SQLITE_FOUND = {
    "customer": "SELECT name FROM customers",
    "temporary": "SELECT count(*) FROM temp.sqlite_master WHERE name <> 'oncehook_session'",
    "last_number": "SELECT last_insert_rowid()",
    "is_case_sensitive": "SELECT 'a' NOT LIKE 'A'",
    "databases": "SELECT group_concat(name) FROM pragma_database_list WHERE name <> 'temp'",
    "foreign_keys": "PRAGMA foreign_keys",
    "recursive_triggers": "PRAGMA recursive_triggers",
    "query_only": "PRAGMA query_only",
    "ignore_check_constraints": "PRAGMA ignore_check_constraints",
}
"""Queries that show what an earlier handler has left in a SQLite connection."""
