"""A course that marks itself. Without a number: the lessons, and which of them you have passed."""

from __future__ import annotations

import argparse
import json
import logging
import runpy
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from learn import lesson1, lesson2, lesson3, lesson4, lesson5, require
from learn.lesson import Lesson
from learn.measure import machine
from learn.play import MINE, sentence_of

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "results" / "reference-learn" / "figures.json"  # ours
MODULES = lesson1, lesson2, lesson3, lesson4, lesson5
LESSONS: dict[int, Lesson] = {n: module.LESSON for n, module in enumerate(MODULES, 1)}
PAGES = sorted(path.relative_to(ROOT) for path in ROOT.glob("learn/[0-9]*.md"))


def main() -> int:
    logging.disable()  # the engine's log says less well what the course says
    parser = argparse.ArgumentParser(prog="python -m learn", description=__doc__)
    parser.add_argument("lesson", type=int, nargs="?", choices=[*LESSONS], help="mark this lesson")
    parser.add_argument("--show", action="store_true", help="draw its example instead")
    parser.add_argument("--record", action="store_true", help="measure what is printed as ours")
    options = parser.parse_args()
    if options.record:
        record()
    elif options.lesson is None:
        list_lessons()
    elif options.show:
        print(LESSONS[options.lesson].show())
    else:
        return mark(options.lesson)
    return 0


def list_lessons() -> None:
    for number, lesson in LESSONS.items():
        state = ""
        if (path := file_of(number)).exists():
            state = "passed" if verdict(lesson, path)[1] is None else "not yet"
        print(f"{number}  {lesson.title:39} {PAGES[number - 1]!s:27} {state}".rstrip())


def mark(number: int) -> int:
    """Checks the reader's file, and measures if all holds."""
    lesson, path = LESSONS[number], file_of(number)
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / "learn" / "stubs" / path.name, path)
        print(f"Your file is {MINE}/{path.name}; {PAGES[number - 1]} says what to write.")
    held, wrong = verdict(lesson, path)
    for place, fact in enumerate(lesson.checks):
        print(f"{'ok' if place < held else 'no' if place == held else '  '}  {fact}")
        if place == held:
            print(f"      {wrong}")
    if wrong is not None:
        return 1
    print("passed; measuring ...", flush=True)
    print_figures(number, lesson.measure(answers_in(path)))
    print(f"Compare yours with {lesson.solution}.")
    if number < len(PAGES):
        print(f"Next: {PAGES[number]}")
    return 0


def file_of(number: int) -> Path:
    return ROOT / MINE / f"lesson{number}.py"


def answers_in(path: Path) -> SimpleNamespace:
    return SimpleNamespace(**runpy.run_path(str(path)))


def verdict(lesson: Lesson, path: Path) -> tuple[int, str | None]:
    """How many checks hold before one that does not, and what is wrong; None: nothing is."""
    held = 0
    try:
        answers = answers_in(path)
        missing = [name for name in lesson.ours if not hasattr(answers, name)]
        require(not missing, f"{MINE}/{path.name} does not define {', '.join(missing)}")
        for check in lesson.checks.values():
            check(answers)
            held += 1
    except Exception as error:  # of the reader's code, too
        return held, sentence_of(error)
    return held, None


def print_figures(number: int, figures: Mapping[str, float]) -> None:
    ours: dict[str, Any] = json.loads(FIGURES.read_text())
    print("    yours     ours")
    for name, value in figures.items():
        print(f"{shown(value)} {shown(ours['lessons'][str(number)][name])}  {name}")
    print(f"ours: {ours['machine']}, {ours['date']}")


def shown(value: float | None) -> str:
    if value is None:  # not recorded yet
        return f"{'-':>9}"
    return f"{value:9,.0f}" if value >= 100 or value == int(value) else f"{value:9.2f}"


def record() -> None:
    """Our figures, measured with the product's classes."""
    figures = {
        number: {name: round(value, 3) for name, value in measured.items()}
        for number, lesson in LESSONS.items()
        for measured in [lesson.measure(SimpleNamespace(**lesson.ours))]
    }
    about = {"machine": machine(), "date": time.strftime("%Y-%m-%d"), "lessons": figures}
    print(json.dumps(about, indent=2))


if __name__ == "__main__":
    sys.exit(main())
