"""Run by Alembic for each upgrade, in the transaction that `migrate` is called with."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
