"""Charts are well-formed SVG that says what it shows, with every point in place and explained."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import hypothesis.strategies as st
from hypothesis import given

from client.report.html.chart import Axis, Band, Bar, Chart, Mark, Polyline, draw

SVG = "{http://www.w3.org/2000/svg}"
values = st.floats(1e-6, 1e6)


def drawn(**parts: object) -> ElementTree.Element:
    plain = {"title": "t", "finding": "found", "x": Axis("x"), "y": Axis("y")}
    return ElementTree.fromstring(draw(Chart(**{**plain, **parts})))  # type: ignore[arg-type]


def tooltips(root: ElementTree.Element) -> list[str | None]:
    return [title.text for title in root.iter(f"{SVG}title")]


@given(st.lists(st.tuples(values, values), min_size=1, max_size=30), st.booleans(), st.booleans())
def test_every_point_has_its_tooltip_and_lies_inside_the_picture(
    points: list[tuple[float, float]], log_x: bool, log_y: bool
) -> None:
    marks = [Mark(x, y, "#123456", f"point {k}") for k, (x, y) in enumerate(points)]
    root = drawn(marks=marks, x=Axis("x", log=log_x), y=Axis("y", log=log_y))
    assert tooltips(root) == [f"point {k}" for k in range(len(points))]
    for circle in root.iter(f"{SVG}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 520
        assert 0 <= float(circle.attrib["cy"]) <= 330


def test_larger_values_stand_further_right_and_higher() -> None:
    root = drawn(marks=[Mark(1, 1, "#000", "low"), Mark(2, 3, "#000", "high")])
    low, high = root.iter(f"{SVG}circle")
    assert float(low.attrib["cx"]) < float(high.attrib["cx"])
    assert float(low.attrib["cy"]) > float(high.attrib["cy"])


def test_a_missing_value_interrupts_its_line() -> None:
    line = Polyline([(0, 1), (1, 2), (2, math.nan), (3, 4), (4, 5)], "#abcdef", "a")
    path = next(p for p in drawn(lines=[line]).iter(f"{SVG}path") if p.get("stroke") == "#abcdef")
    assert path.attrib["d"].count("M") == 2


def test_text_of_others_is_escaped_and_the_finding_is_the_alternative_text() -> None:
    root = drawn(title="<script>", finding='a "b" & c', marks=[Mark(1, 1, "#000", "<i>")])
    assert root.attrib["aria-label"] == 'a "b" & c'
    assert tooltips(root) == ["<i>"]


def test_a_chart_of_nothing_is_still_a_chart() -> None:
    assert drawn().tag == f"{SVG}svg"
    drawn(x=Axis("x", log=True), y=Axis("y", log=True), lines=[Polyline([], "#000", "a")])
    drawn(bands=[Band([], "#000")], bars=[Bar(0, 0, 0, 0, "#000")])
