"""The tables of the first release. `migrate` creates them, so this revision does nothing."""

revision = "2"  # of the databases that development versions made
down_revision = None


def upgrade() -> None:
    """A database of this revision already has its tables."""
