"""Numbers that all doors share, whatever API they speak."""

from __future__ import annotations

COOLEST, HOTTEST = 1e-6, 1e6  # temperatures; logits divided by less would overflow
FRESH_SEED_BITS = 32  # of a seed that is drawn: any client's JSON holds it exactly
