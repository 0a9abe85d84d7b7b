"""Alembic runs this file for each upgrade, in the transaction of `migrate`."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
