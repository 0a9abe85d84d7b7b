"""The tables of the first release: nothing leads to them, since `migrate` makes them at once."""

revision = "1"
down_revision = None


def upgrade() -> None:
    """Every database of this revision was made with its tables."""
