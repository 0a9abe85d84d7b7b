"""`python -m model_server.wire`: generates the code of `model.proto` beside it. Needs
`requirements-dev.txt`."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent.parent
PROTO = "model_server/wire/model.proto"


def generate(folder: Path) -> int:
    """Writes the generated modules to `folder`, at their paths in the repository."""
    outputs = [f"--{kind}_out={folder}" for kind in ("python", "pyi", "grpc_python")]
    status: int = protoc.main(["protoc", f"-I{ROOT}", *outputs, PROTO])
    return status


if __name__ == "__main__":
    sys.exit(generate(ROOT))
