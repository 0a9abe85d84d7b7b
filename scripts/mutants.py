"""Draws small faults (mutants) from a commit and a seed, and shows which ones the tests miss.

    python scripts/mutants.py BASE TESTS SEED NUMBER FOLDER RESULTS [COMMAND...]

FOLDER/tree, a git worktree, becomes BASE with the `tests/` of TESTS; FOLDER/coverage says what each
test reaches there (coverage.py, --cov-context=test). A mutant meets the tests that reach its line,
then those over real processes of its package, run by COMMAND. RESULTS gets a line of JSON for each.
"""

import ast
import json
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIMIT_S, HANG_S = 150, 90  # of a mutant's tests of either sort, and of one test
LIFE = ["tests/server/life"]
PROCESSES = {
    **dict.fromkeys(("batching.py", "engine", "scheduling"), LIFE),
    "runtime": ["tests/runtime/test_shards.py", "tests/model_server"],
    "models": ["tests/models/test_fetch.py", "tests/model_server"],
    **{package: ["tests/server/apis", *LIFE] for package in ("text", "api")},
    "deferred": ["tests/server/test_batches.py"],
    "router": ["tests/router/http"],
}
MOVED = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
TURNED = {ast.Lt: ast.GtE, ast.Gt: ast.LtE, ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.Is: ast.IsNot}
TURNED |= {turned: operator for operator, turned in TURNED.items()}
# what tests need not hold, by its beginning, and keywords; strings never change
APART = r"f['\"]|assert |Literal\[|if (TYPE_CHECKING|__name)|def __repr|(\w+\.)*log(ger)?\.\w+\("
INERT = {"strict", "daemon", "name", "help", "slots", "frozen"}
Fault = tuple[ast.expr | ast.stmt, str, str]  # what is replaced, by what, the kind


def faults(node: ast.AST) -> Iterator[Fault]:
    if not isinstance(node, ast.Module) and re.match(APART, ast.unparse(node)):
        return
    match node:
        case ast.Compare(left, [operator], last):
            for kind, table in (("turned", TURNED), ("moved", MOVED)):
                if other := table.get(type(operator)):
                    yield node, ast.unparse(ast.Compare(left, [other()], last)), kind
        case ast.Constant(int(value)) if not isinstance(value, bool):
            yield node, f"{value + 1}", "moved"
        case ast.If(test) | ast.IfExp(test) | ast.BoolOp(values=[*_, test]):
            yield test, "False", "skipped"
        case ast.Return() | ast.AugAssign() | ast.Assign([ast.Attribute()]) | ast.Expr(ast.Call()):
            yield node, "pass", "dropped"
        case ast.Call(function, args, [*kept, ast.keyword(str(word))]) if word not in INERT:
            yield node, ast.unparse(ast.Call(function, args, kept)), "dropped"
    for child in ast.iter_child_nodes(node):
        yield from faults(child)


def drawn(tree: Path, seed: str) -> list[tuple[float, str, Path, Fault]]:
    """Ranked: a package has a share as the root of its size; in it, all kinds are alike."""
    chance, seen, ranked = random.Random(seed), Counter[tuple[str, str]](), []
    for package in PROCESSES:
        paths = sorted(tree.glob(f"{package}/**/*.py")) or [tree / package]
        found = [(path, fault) for path in paths for fault in faults(ast.parse(path.read_text()))]
        chance.shuffle(found)
        for path, fault in found:
            seen[kind := (package, fault[2])] += 1
            ranked.append(((seen[kind] - 0.5) / len(found) ** 0.5, package, path, fault))
    return sorted(ranked, key=lambda mutant: mutant[0])


def reaching(coverage: Path, path: str, lines: range) -> list[str]:
    """Tests that reach the lines, or else the file; those of files that reach little come first."""
    reach, here, near = Counter[str](), set[str](), set[str]()
    for context, file, bits in sqlite3.connect(coverage).execute(
        "SELECT context, path, numbits FROM line_bits JOIN file ON file.id = file_id"
        " JOIN context ON context.id = context_id WHERE context != ''"
    ):
        whole, reached = context.partition("::")[0], int.from_bytes(bits, "little")
        reach[whole] += reached.bit_count()
        if file == path:  # what a fixture reaches may serve all tests of a file
            test = whole if context.endswith("setup") else re.split(r"\[|\|", context)[0]
            (here if any(reached >> line & 1 for line in lines) else near).add(test)
    return sorted(here or near, key=lambda test: (reach[test.partition("::")[0]], test))


def tested(tree: Path, tests: list[str], *command: str) -> str:
    limited = [*command, "timeout", "-sINT", "-k20", f"{LIMIT_S}", sys.executable, "-m", "pytest"]
    options = ["-xqm", "not long", "-p", "no:cacheprovider", f"--timeout={HANG_S}", *tests]
    ended = subprocess.run([*limited, *options], cwd=tree, capture_output=True, text=True)
    if failed := re.search(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE):
        return f"{'hung' if 'Timeout (>' in ended.stdout else 'caught'} by {failed[1]}"
    return {0: "survived", 124: "out of time"}.get(ended.returncode, f"ended {ended.returncode}")


def main(base: str, tests: str, seed: str, number: str, folder: str, into: str, *run: str) -> None:
    tree, results = Path(folder, "tree").resolve(), Path(into)
    for command in f"checkout -qf {base}", "rm -rqf tests", f"checkout -q {tests} -- tests":
        subprocess.run(["git", "-C", tree, *command.split()], check=True)
    results.touch()
    for _, package, path, (node, new, kind) in drawn(tree, seed)[: int(number)]:
        right, name = path.read_bytes(), path.relative_to(tree).as_posix()
        mutant = f"{name}:{node.lineno}:{node.col_offset}: {ast.unparse(node)} -> {new}"
        if json.dumps(mutant) in results.read_text():
            continue
        rows, first, last = right.splitlines(keepends=True), node.lineno - 1, node.end_lineno or 0
        ends = rows[first][: node.col_offset], rows[last - 1][node.end_col_offset :]
        path.write_bytes(b"".join([*rows[:first], new.encode().join(ends), *rows[last:]]))
        reached = reaching(tree.parent / "coverage", name, range(first + 1, last + 1))
        found = tested(tree, reached or PROCESSES[package], *run)
        if found in ("survived", "out of time"):
            found += ", " + tested(tree, PROCESSES[package], *run)
        path.write_bytes(right)
        results.write_text(results.read_text() + json.dumps([package, kind, mutant, found]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
