"""How a network runs: KV cache, attention, linear layers, sampling, and the executor of all."""

import os

# Pages of 2 MB for weights and KV memory. Torch reads this when it first allocates memory.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
