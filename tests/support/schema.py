"""The schema as a database reports it."""

from tests.support.servers import run_sql


def column_types(database: str, table: str) -> dict[str, str]:
    """The type of every column as in docs/schema.md: without a length, and a domain as its base type."""
    if database.startswith("sqlite"):
        return {row[1]: row[2].lower() for row in run_sql(database, f"PRAGMA table_info({table})")}
    wanted = f"SELECT column_name, data_type FROM information_schema.columns WHERE table_name = '{table}'"
    short = {"timestamp with time zone": "timestamptz", "double precision": "double"}
    return {column: short.get(type_, type_) for column, type_ in run_sql(database, wanted)}


POSTGRES_OBJECTS = (
    """SELECT 'column', table_name || '.' || column_name, data_type || coalesce(domain_name, '') || is_nullable
              || coalesce(column_default, '') || coalesce(collation_name, '')
       FROM information_schema.columns WHERE table_name LIKE 'webhook%'""",
    "SELECT 'index', indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'webhook%'",
    """SELECT 'constraint', conname, pg_get_constraintdef(oid) FROM pg_constraint
       WHERE conrelid::regclass::text LIKE 'webhook%' OR contypid::regtype::text LIKE 'webhook%'""",
    """SELECT 'routine', proname, pg_get_functiondef(oid) FROM pg_proc
       WHERE proname LIKE 'webhook%' AND prokind IN ('f', 'p')""",
    """SELECT 'trigger', tgname, pg_get_triggerdef(oid) FROM pg_trigger
       WHERE tgrelid::regclass::text LIKE 'webhook%' AND NOT tgisinternal""",
    "SELECT 'view', viewname, definition FROM pg_views WHERE viewname LIKE 'webhook%'",
    """SELECT 'options', relname, relkind::text || coalesce(reloptions::text, '') FROM pg_class
       WHERE relname LIKE 'webhook%' AND relkind IN ('r', 'p', 'S', 'v')""",
)


def describe_schema(database: str) -> list[tuple[str, str, str]]:
    """Everything that Oncehook's migrations create, without the partitions, which depend on the day."""
    if database.startswith("sqlite"):
        statement = "SELECT type, name, coalesce(sql, '') FROM sqlite_master WHERE tbl_name LIKE 'webhook%'"
        return sorted((row[0], row[1], row[2]) for row in run_sql(database, statement))
    found = [(row[0], row[1], row[2]) for statement in POSTGRES_OBJECTS for row in run_sql(database, statement)]
    return sorted(entry for entry in found if "webhook_payloads_2" not in entry[1] + entry[2])
