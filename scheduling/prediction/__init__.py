"""How long an iteration will take, for policies: a curve, and how it is learnt online."""
