"""How many examples a property is tried on: few by default, more under `./test.sh --long`."""

from __future__ import annotations

from hypothesis import settings


def examples(few: int, many: int = 100) -> settings:
    """As `@settings(max_examples=...)`, which would hold in the long form, too."""
    long = settings.get_current_profile_name() == "long"
    return settings(max_examples=many if long else few)
