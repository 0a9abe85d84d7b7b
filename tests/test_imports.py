"""Holds the table of rooms: who may import what of ours, and which rooms never import torch.

Imports are read from the source, those inside functions and under TYPE_CHECKING included, so a
seam cannot be crossed in a corner. Modules of ours that are not in the table fail the test: a new
room begins with a line here.
"""

from __future__ import annotations

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# room -> rooms it may import, besides itself
MAY_IMPORT: dict[str, set[str]] = {
    "seams": set(),
    "config": set(),
    "gunicorn_conf": {"config", "api"},  # of api its logs
    "text": {"seams", "embedded"},  # its vocabulary, which needs no torch: held below
    "scheduling": {"seams"},
    "generate": {"seams"},
    "stats": {"seams"},
    "inference": {"seams"},
    "queueing": {"seams", "inference"},
    "records": {"seams", "inference"},
    "batching": {"seams", "inference", "queueing", "records", "scheduling", "generate", "stats"},
    "kernels": set(),
    "gpt": {"seams", "kernels"},
    "model": {"seams", "gpt", "kernels"},
    "embedded": {"gpt"},
    "deferred": {"batching", "inference", "text"},
    "api": {"batching", "inference", "text", "stats", "deferred", "config", "seams"},
    "client": set(),
    "router": set(),
}
MAY_IMPORT["app"] = set(MAY_IMPORT) - {"client", "router", "gunicorn_conf"}
UNBOUND = {"benchmarks", "tests"}  # these may import anything

WITHOUT_TORCH = {
    "batching",
    "inference",
    "queueing",
    "records",
    "scheduling",
    "stats",
    "deferred",
    "seams",
    "text",
    "generate",
}
NOT_OURS = {"build", "data", "results", "scripts", "docs", "deploy"}  # folders without modules


@functools.cache
def modules() -> list[tuple[str, Path]]:
    """Every module of ours, as (room, path)."""
    found = []
    for top in sorted(ROOT.iterdir()):
        if top.suffix == ".py":
            found.append((top.stem, top))
        elif top.is_dir() and not top.name.startswith(".") and top.name not in UNBOUND | NOT_OURS:
            found += [(top.name, path) for path in sorted(top.rglob("*.py"))]
    return found


@functools.cache
def imported(path: Path) -> set[str]:
    """The first names of all that a module imports; relative imports stay in their room."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_every_module_belongs_to_a_room_of_the_table() -> None:
    assert {room for room, _ in modules()} <= set(MAY_IMPORT)


def test_the_rooms_have_an_order_without_circles() -> None:
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_the_rooms_it_may(room: str) -> None:
    for of, path in modules():
        if of == room:
            strangers = (imported(path) & set(MAY_IMPORT)) - MAY_IMPORT[room] - {room}
            tests = imported(path) & UNBOUND
            assert not strangers | tests, f"{path.relative_to(ROOT)} imports {strangers | tests}"


@pytest.mark.parametrize("room", sorted({room for room, _ in modules()} & WITHOUT_TORCH))
def test_a_room_without_torch_reaches_none_through_what_it_imports(room: str) -> None:
    """Really imported, in a process of its own: libraries count too."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for of, path in modules()
        if of == room
    ]
    program = "; ".join(
        [*(f"import {name}" for name in names), "import sys", "sys.exit('torch' in sys.modules)"]
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{names}: {done.stderr or 'torch is imported'}"


def test_the_rooms_without_torch_do_not_name_it_either() -> None:
    for room, path in modules():
        if room in WITHOUT_TORCH:
            assert "torch" not in imported(path), path


def test_the_hash_model_needs_no_torch() -> None:
    program = "import tests.hash_model, sys; sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, timeout=300)
    assert done.returncode == 0
