"""Each benchmark is a command that explains itself, and small ones run to their end."""

from __future__ import annotations

import json
import runpy
import sys

import pytest

from client.load.machine import ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__main__")
    for path in (ROOT / "benchmarks").rglob("*.py")
    if "options(" in path.read_text() or "ArgumentParser(" in path.read_text()
    if "__main__" in path.read_text()
)
SMALL = {
    "prefix": "--model embedded --rounds 1 --prompt-tokens 100 --requests 4",
    "long_prompts": "--rounds 1 --decodes 2 --decode-tokens 300 --prompts 2 --prompt-tokens 90",
    "planning": "--policies orca hrrn --rounds 1 --step-ms 40",
    "deferred": "--rounds 1 --seconds 0.5 --calibrate 0.5 --loads 0.3 --shapes poisson --factors 2",
    "kernels.linear": "--sizes 1024x1024 --rows 1 --rounds 2 --precisions float32 q8_0",
    "routing": "--rounds 1 --seconds 5",
    "kernels.host": "--rows 2 --keys 64",
}
LONG = {
    "http": "--streams 4 --model embedded --rounds 1 --dtype float32",
    "http.cost": "--streams 4",
    "modes": "--model embedded --dtypes float32 --limits 4 --rounds 1 --http",
    "overload": "--modes dynamic --rounds 2",
    "peers": "--peers --model embedded --dtypes float32 --requests 2 --rounds 1",
    "speculation": "--rounds 1 --streams 2 --output-tokens 4",
}


def run(monkeypatch: pytest.MonkeyPatch, module: str, arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [module, *arguments.split()])
    for imported in (module, f"{module}.__main__"):  # by other tests
        if not (ROOT / imported.replace(".", "/")).is_dir():
            monkeypatch.delitem(sys.modules, imported, raising=False)
    runpy.run_module(module, run_name="__main__", alter_sys=False)


@pytest.mark.parametrize("module", MODULES)
def test_every_benchmark_explains_itself(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match=r"^0$"):
        run(monkeypatch, module, "--help")
    assert "usage: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "arguments"),
    [*SMALL.items(), *(pytest.param(*one, marks=pytest.mark.long) for one in LONG.items())],
)
def test_a_small_run_ends_with_a_table_and_its_figures(
    name: str, arguments: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, f"benchmarks.{name}", arguments)
    *card, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| ---") for line in card)
    assert json.loads(last)["machine"]["cores"] >= 1
