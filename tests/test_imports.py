"""The table of packages: which packages each may import, and which never import torch.

Imports are read from the source, including those inside functions and under TYPE_CHECKING. Modules
that are not in the table fail the test: a new package begins with a line here.
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

# package -> packages it may import, besides itself
MAY_IMPORT: dict[str, set[str]] = {
    "seams": set(),
    "options": set(),
    "tracing": set(),
    "journal": set(),
    "browsers": {"options"},
    "config": {"options", "browsers"},
    "gunicorn_conf": {"config", "api"},  # of api its logs and its worker
    "text": {"seams", "embedded"},  # its vocabulary, which needs no torch: held below
    "scheduling": {"seams"},
    "generate": {"seams", "memory"},
    "figures": set(),
    "stats": {"seams", "figures"},
    "inference": {"seams"},
    "queueing": {"seams", "inference"},
    "records": {"seams", "inference"},
    "recording": {"journal", "records"},
    "watch": {"seams", "records"},
    "flight": {"seams", "inference", "records"},
    "failures": {"seams", "inference", "flight", "lifecycle", "records"},
    "memory": {"seams"},
    "lifecycle": {"seams", "inference", "memory", "queueing", "records", "scheduling"},
    "batching": {
        "failures",
        "flight",
        "generate",
        "inference",
        "lifecycle",
        "memory",
        "queueing",
        "records",
        "scheduling",
        "seams",
    },
    "liveness": {"batching", "scheduling"},
    "kernels": set(),
    "gpt": {"seams", "kernels"},
    "model": {"seams", "gpt"},
    "loading": {"model", "gpt"},
    "model_server": {"seams", "loading", "gpt", "options", "text", "tracing", "journal"},
    "embedded": {"gpt"},
    "deferred": {"batching", "inference", "text"},
    "api": {
        "batching",
        "inference",
        "text",
        "stats",
        "figures",
        "deferred",
        "browsers",
        "config",
        "seams",
        "tracing",
        "watch",
    },
    "engine": {
        "batching",
        "config",
        "deferred",
        "generate",
        "liveness",
        "loading",
        "model_server",
        "recording",
        "scheduling",
        "seams",
        "text",
    },
    "launcher": {"options", "config"},
    "client": set(),
    "router": {"options", "browsers", "tracing", "journal"},
}
MAY_IMPORT["app"] = set(MAY_IMPORT) - {"client", "router", "launcher", "gunicorn_conf"}

# package -> its floors, the lowest first: what stands on one imports only what stands below.
# What is not named stands on top, beside the commands.
FLOORS: dict[str, list[set[str]]] = {
    "api": [
        {"http", "limits", "metrics", "texts"},
        {"service"},
        {"stream"},
        {"openai"},  # its chat templates serve TGI's chat route, too
        {"native", "tgi", "jobs", "watch"},
        {"document"},
    ],
    "client": [{"workloads"}, {"load"}, {"analysis"}, {"report"}],
    "model_server": [{"wire"}, {"remote"}, {"serving", "config"}],
    "router": [{"rules"}, {"config", "log"}, {"desk"}, {"metrics"}, {"http"}, {"service"}],
    "deferred": [{"errors", "records", "pace"}, {"lines", "store"}, {"clerk", "worker"}],
    "scheduling": [{"contract", "fitting", "growth"}, {"policies", "classes"}, {"registry"}],
}
UNBOUND = {"benchmarks", "tests"}  # these may import anything

WITHOUT_TORCH = {
    "batching",
    "browsers",
    "failures",
    "flight",
    "inference",
    "journal",
    "lifecycle",
    "liveness",
    "memory",
    "queueing",
    "recording",
    "records",
    "scheduling",
    "stats",
    "deferred",
    "seams",
    "watch",
    "text",
    "generate",
}
NOT_OURS = {"build", "data", "results", "scripts", "docs", "deploy"}  # folders without modules


@functools.cache
def modules() -> list[tuple[str, Path]]:
    """Every module of ours, as (package, path)."""
    found = []
    for top in sorted(ROOT.iterdir()):
        if top.suffix == ".py":
            found.append((top.stem, top))
        elif top.is_dir() and not top.name.startswith(".") and top.name not in UNBOUND | NOT_OURS:
            found += [(top.name, path) for path in sorted(top.rglob("*.py"))]
    return found


@functools.cache
def imported(path: Path) -> set[str]:
    """The first names of all that a module imports; relative imports stay in their package."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_every_module_belongs_to_a_package_of_the_table() -> None:
    assert {package for package, _ in modules()} <= set(MAY_IMPORT)


def test_the_packages_have_an_order_without_circles() -> None:
    graphlib.TopologicalSorter(MAY_IMPORT).prepare()


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_a_package_imports_only_the_packages_it_may(package: str) -> None:
    for of, path in modules():
        if of == package:
            strangers = (imported(path) & set(MAY_IMPORT)) - MAY_IMPORT[package] - {package}
            tests = imported(path) & UNBOUND
            assert not strangers | tests, f"{path.relative_to(ROOT)} imports {strangers | tests}"


@functools.cache
def imported_of_package(path: Path, package: str) -> set[str]:
    """The second names of what a module imports of a package: its folders and files."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            dotted = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        names |= {name.split(".")[1] for name in dotted if name.startswith(f"{package}.")}
    return names


@pytest.mark.parametrize("package", FLOORS)
def test_a_folder_imports_only_lower_floors_of_its_package(package: str) -> None:
    floor_of = {name: floor for floor, names in enumerate(FLOORS[package]) for name in names}
    for of, path in modules():
        own = path.relative_to(ROOT / package).parts[0].removesuffix(".py") if of == package else ""
        if own in floor_of:
            for name in imported_of_package(path, package) - {own}:
                floor = floor_of.get(name, len(FLOORS[package]))
                assert floor < floor_of[own], f"{path.relative_to(ROOT)} imports {package}.{name}"


@pytest.mark.parametrize("package", FLOORS)
def test_every_floor_names_what_exists(package: str) -> None:
    for name in set().union(*FLOORS[package]):
        place = ROOT / package / name
        assert place.is_dir() or place.with_suffix(".py").exists(), f"{package}/{name} is gone"


def test_the_packages_without_torch_reach_none_through_what_they_import() -> None:
    """Really imported, in a process of its own: libraries count too."""
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for of, path in modules()
        if of in WITHOUT_TORCH and path.name != "env.py"  # Alembic runs it and never imports it
    ]
    program = (
        "import importlib, sys\n"
        "for name in sys.argv[1:]:\n"
        "    importlib.import_module(name)\n"
        "    if 'torch' in sys.modules: sys.exit(f'{name} imports torch')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *names, "tests.hash_model", "model_server.remote.model"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_the_packages_without_torch_do_not_name_it_either() -> None:
    for package, path in modules():
        if package in WITHOUT_TORCH:
            assert "torch" not in imported(path), path
