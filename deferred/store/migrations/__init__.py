"""Brings a database to the current schema, with Alembic's revisions in `versions/`.

A new database is made directly from `entities.py` and stamped with the latest revision. Revisions
change only existing databases. So a schema change needs both: an edit of `entities.py`, and a
revision (`alembic revision -m "what it does"`) that makes the same change to the last release.
"""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from deferred.entities import Base
from deferred.errors import UnknownSchemaError

SCRIPTS = Path(__file__).parent
LOCK_KEY = 0x6A6F6273  # arbitrary; servers that start together migrate one after the other


def migrate(connection: Connection, scripts: Path = SCRIPTS) -> None:
    """Creates or changes the tables, in the transaction of `connection`.

    Raises UnknownSchemaError.
    """
    # imported here, since it takes 0.1 s and a server without jobs does not need it
    from alembic import command
    from alembic.config import Config
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": LOCK_KEY})
    directory = ScriptDirectory(str(scripts))
    context = MigrationContext.configure(connection)
    current = context.get_current_revision()
    if current == directory.get_current_head():
        return
    if current is None:
        if inspect(connection).has_table("batches"):
            raise UnknownSchemaError(
                "the job database was made by a version before the first release: move it away, "
                "or name another one"
            )
        Base.metadata.create_all(connection)
        context.stamp(directory, "head")
        return
    if current not in {script.revision for script in directory.walk_revisions()}:
        raise UnknownSchemaError(
            f"the job database has schema revision {current}, which this program does not know "
            f"(its latest is {directory.get_current_head()}): run the newer program, or name "
            "another database"
        )
    config = Config()
    config.set_main_option("script_location", str(scripts).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
