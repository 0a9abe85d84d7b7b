"""The table of responses."""

import sqlalchemy as sa
from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    op.create_table(
        "responses",
        sa.Column(
            "number",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            primary_key=True,
        ),
        sa.Column("id", sa.Text, nullable=False, unique=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("previous", sa.BigInteger),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("lost_at", sa.Double),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("responses_stored", "responses", ["owner", "size_bytes"])
    op.create_index("responses_expiry", "responses", ["expires_at"])
    running = sa.text("lost_at IS NOT NULL")
    op.create_index(
        "responses_running",
        "responses",
        ["lost_at"],
        sqlite_where=running,
        postgresql_where=running,
    )
