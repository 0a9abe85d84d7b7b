"""The course: the product and a reader's right answers pass; stubs and typical mistakes do not, and
hear why."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from learn import __main__ as course
from learn import measure
from learn.__main__ import FIGURES, LESSONS, PAGES, ROOT, verdict
from tests.learn.readers import MISTAKES, RIGHT, Mistake

every_lesson = pytest.mark.parametrize("number", LESSONS)
PRINTED = re.compile(r"```bash\npython -m learn (.*?)\n```\n\n```text\n(.*?)```", re.DOTALL)


def written(text: str, number: int, folder: Path) -> Path:
    path = folder / "mine" / f"lesson{number}.py"
    path.parent.mkdir()
    path.write_text(text)
    return path


@every_lesson
def test_the_products_own_classes_pass(number: int) -> None:
    for check in LESSONS[number].checks.values():
        check(SimpleNamespace(**LESSONS[number].ours))


@every_lesson
def test_a_readers_right_answer_passes(number: int, tmp_path: Path) -> None:
    path = written(RIGHT[number], number, tmp_path)
    assert verdict(LESSONS[number], path) == (len(LESSONS[number].checks), None)


@every_lesson
def test_the_stub_is_not_written_yet_and_says_what_and_where(number: int, tmp_path: Path) -> None:
    stub = (ROOT / "learn" / "stubs" / f"lesson{number}.py").read_text()
    held, said = verdict(LESSONS[number], written(stub, number, tmp_path))
    assert held == 0
    assert re.fullmatch(
        rf"not written yet: `.*` .* \(mine/lesson{number}.py, line \d+\)", said or ""
    )


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=lambda mistake: f"{mistake.lesson}: {mistake.wrong}"
)
def test_a_typical_mistake_is_found_and_named(mistake: Mistake, tmp_path: Path) -> None:
    right = RIGHT[mistake.lesson]
    assert right.count(mistake.right) == 1
    path = written(right.replace(mistake.right, mistake.wrong), mistake.lesson, tmp_path)
    held, said = verdict(LESSONS[mistake.lesson], path)
    assert said is not None
    assert mistake.said in said
    assert held < len(LESSONS[mistake.lesson].checks)


@every_lesson
def test_a_lesson_measures_the_figures_that_are_recorded(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "ROUNDS", 1)
    figures = LESSONS[number].measure(SimpleNamespace(**LESSONS[number].ours))
    assert all(value > 0 for value in figures.values())
    assert [*json.loads(FIGURES.read_text())["lessons"][str(number)]] == [*figures]


@every_lesson
def test_a_page_shows_what_its_commands_print(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stub = ROOT / "learn" / "stubs" / f"lesson{number}.py"
    monkeypatch.setattr(course, "file_of", lambda _: tmp_path / "mine" / stub.name)
    for wanted, text in PRINTED.findall((ROOT / PAGES[number - 1]).read_text()):
        monkeypatch.setattr("sys.argv", ["learn", *wanted.split()])
        assert course.main() == (0 if "--show" in wanted else 1)
        assert capsys.readouterr().out == text


def test_the_list_says_which_lessons_are_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(course, "file_of", lambda number: tmp_path / "mine" / f"lesson{number}.py")
    monkeypatch.setattr("sys.argv", ["learn"])
    course.main()
    fresh = capsys.readouterr().out
    assert f"```text\n{fresh}```" in (ROOT / "learn" / "README.md").read_text()
    written(RIGHT[1], 1, tmp_path)
    (tmp_path / "mine" / "lesson2.py").write_text("class WholeBatch: pass")
    course.main()
    first, second, *others = capsys.readouterr().out.splitlines()
    assert (first.endswith("passed"), second.endswith("not yet")) == (True, True)
    assert others == fresh.splitlines()[2:]
