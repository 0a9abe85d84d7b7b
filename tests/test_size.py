"""The size of the project. A number here may fall; a commit that raises one says why.

Counted in the files of Python that git knows, without those that protoc writes.
"""

from __future__ import annotations

import ast
import functools
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHORT_LINES = 40  # a file below is a thought, not yet an idea; __init__.py aside
LONG_LINES = 60  # a function above is two

# lines of each package; what has no row of its own counts as `others`
LINES = {
    "api": 8368,
    "benchmarks": 6362,
    "client": 8298,
    "deferred": 3026,
    "kernels": 1273,
    "learn": 1197,
    "model_server": 2125,
    "models": 2774,
    "router": 4925,
    "runtime": 5190,
    "scheduling": 2205,
    "tests": 31222,
    "text": 1937,
    "others": 7389,
}
PRODUCT_LINES = 39212  # all but tests, benchmarks, client and learn
SHORT_FILES = 34
LONG_FUNCTIONS = 7
REPEATED_CLASS_NAMES = 12  # names that two classes outside the tests have


@functools.cache
def sources() -> dict[str, str]:
    """Each file's text by its path."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    names = [name for name in listed.stdout.split() if "_pb2" not in name]
    return {name: (ROOT / name).read_text() for name in names if (ROOT / name).exists()}


@functools.cache
def lines() -> Counter[str]:
    found: Counter[str] = Counter()
    for name, text in sources().items():
        package = name.split("/")[0]
        found[package if package in LINES else "others"] += text.count("\n")
    return found


@pytest.mark.parametrize("package", LINES)
def test_a_package_does_not_grow(package: str) -> None:
    assert lines()[package] <= LINES[package]


def test_the_product_does_not_grow() -> None:
    apart = ("tests", "benchmarks", "client", "learn")
    assert sum(count for package, count in lines().items() if package not in apart) <= PRODUCT_LINES


def test_no_more_files_are_short() -> None:
    short = [
        name
        for name, text in sources().items()
        if text.count("\n") < SHORT_LINES and not name.endswith("__init__.py")
    ]
    assert len(short) <= SHORT_FILES, short


def test_no_more_functions_are_long_and_no_more_class_names_mean_two_things() -> None:
    long, classes = [], Counter[str]()
    for name, text in sources().items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef) and not name.startswith("tests/"):
                classes[node.name] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno + 1 > LONG_LINES:
                    long.append(f"{name}: {node.name}")
    assert len(long) <= LONG_FUNCTIONS, long
    repeated = sorted(name for name, count in classes.items() if count > 1)
    assert len(repeated) <= REPEATED_CLASS_NAMES, repeated
