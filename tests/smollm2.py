"""The file of `--model smollm2`, for tests that need a trained model.

A test with the marks NEEDED is a long one; the product's own code fetches the file for it. `FILE`
is where that puts it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kernels import cache_folder
from models.fetch import locate
from models.names import SMOLLM2
from seams import LoadError

FILE = (
    cache_folder() / "models" / SMOLLM2.requirement.replace("==", "-") / Path(SMOLLM2.member).name
)
NEEDED = [pytest.mark.long, pytest.mark.usefixtures("smollm2_file")]
# what pip says where no index answers: it found no version at all, or a connection broke
NO_NETWORK = re.compile(r"from versions: none|ConnectionPool|[Cc]onnection|[Tt]imed? ?out|Timeout")


def fetched() -> Path:
    """Skips the test where there is no network, and no file of an earlier start. Raises LoadError
    for every other reason."""
    try:
        found = locate("smollm2")
    except LoadError as error:
        reason = str(error).partition("; without a connection")[0]
        if NO_NETWORK.search(reason) is None:
            raise
        pytest.skip(reason)
    assert found == FILE
    return found
