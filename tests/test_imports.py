"""The house: which floor each package stands on, and which packages never import torch.

Imports are read from the source, including those inside functions and under TYPE_CHECKING. A new
package begins with a place in the table.
"""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# The house: what stands on one floor imports only from the floors below it.
HOUSE: list[set[str]] = [
    {"options"},
    {"seams", "kernels", "client", "web"},
    {"models", "scheduling"},
    {"engine", "runtime", "embedded"},
    {"generate", "model", "telemetry", "text"},
    {"batching", "router", "watch"},
    {"deferred", "learn", "model_server"},
    {"serving"},
    {"api"},
    {"app", "launcher"},
    {"cluster"},
]
FLOOR_OF = {package: floor for floor, packages in enumerate(HOUSE) for package in packages}

# The course runs the engine, and else imports what a policy of a user may import.
LEARN_IMPORTS = (
    "batching", "engine.inference", "generate", "learn", "model", "scheduling.composed",
    "scheduling.fitting", "seams",
)  # fmt: skip
UNBOUND = {"benchmarks", "tests"}  # these may import anything

WITHOUT_TORCH = {
    "batching", "deferred", "engine", "generate", "scheduling", "seams", "telemetry", "text",
    "watch", "web",
}  # fmt: skip
# folders without modules
NOT_OURS = {"build", "data", "mine", "results", "scripts", "docs", "deploy"}


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
    """The dotted names that a module imports; relative imports stay in their package."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def test_every_module_has_a_floor() -> None:
    assert {package for package, _ in modules()} == set(FLOOR_OF)


@pytest.mark.parametrize("package", sorted(FLOOR_OF))
def test_a_package_imports_only_what_stands_on_lower_floors(package: str) -> None:
    for of, path in modules():
        if of == package:
            ours = {name.split(".")[0] for name in imported(path)} - {package}
            ours &= set(FLOOR_OF) | UNBOUND
            wrong = {name for name in ours if FLOOR_OF.get(name, len(HOUSE)) >= FLOOR_OF[package]}
            assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_the_course_imports_what_a_users_policy_may_import_and_the_engine_to_run_it() -> None:
    for of, path in modules():
        if of == "learn":
            ours = {name for name in imported(path) if name.split(".")[0] in FLOOR_OF}
            allowed = {
                name for name in ours for may in LEARN_IMPORTS if f"{name}.".startswith(f"{may}.")
            }
            assert ours == allowed, f"{path.relative_to(ROOT)} imports {ours - allowed}"


def test_the_packages_without_torch_reach_none_through_what_they_import() -> None:
    """Really imported, in a process of its own: libraries count too. So are the app, in whose
    process handlers and gunicorn's own thread run, and the router; without an endpoint for traces
    there is nothing of OpenTelemetry."""
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
    program += (
        "\nimport app, serving.config, telemetry.tracing\n"
        "app.create_app(serving.config.Config('dynamic'))\n"
        "telemetry.tracing.start_tracing(None, 'x')\n"
        "assert not {'torch', 'opentelemetry'} & {*sys.modules}"
    )
    names += ["tests.support.hash_model", "router.service", "model_server.remote.model"]
    command = [sys.executable, "-c", program, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
