"""Templates that come with models: Jinja's sandbox, with a limit on time and length.

They have the names and filters that `transformers` gives chat templates.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_CPU_S = 2.0  # for one text
MOST_REPEATED = 2**16  # characters, or entries of a list
MOST_WIDTH = 999
_WIDE = re.compile(r"\d{4}|\*")  # "%1000d" or "%*d"
_TICK = "_within_limits"


class _Sandbox(ImmutableSandboxedEnvironment):
    """Repeating a text is an operation that a loop's limit cannot bound."""

    intercepted_binops = frozenset(["*", "**", "%"])

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            if _WIDE.search(left):
                raise SecurityError(f"operator % is for widths below {MOST_WIDTH + 1} only")
        elif operator == "*" and (length := _repeated(left, right)) is not None:
            if length > MOST_REPEATED:
                raise SecurityError(f"operator * is for up to {MOST_REPEATED} characters only")
        elif not isinstance(left, int | float) or not isinstance(right, int | float):
            raise SecurityError(f"operator {operator} is for numbers and texts only")
        if operator == "**" and (abs(left) > 2**16 or abs(right) > 16):
            raise SecurityError("operator ** is for small numbers only")
        return super().call_binop(context, operator, left, right)


def _repeated(left: Any, right: Any) -> int | None:
    """The length of a text, or a list, times a number."""
    if isinstance(left, int):
        left, right = right, left
    return len(left) * right if isinstance(left, str | list) and isinstance(right, int) else None


class _TrainingMask(Extension):
    """`{% generation %}` marks what a model learns to write; it changes nothing of the text."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body, lineno=line)]


class SandboxedTemplate:
    """`variables`: the names that the source reads. Raises TemplateError for a source that is not a
    template."""

    def __init__(self, source: str) -> None:
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _TrainingMask]
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        tree = environment.parse(source)
        self.variables = meta.find_undeclared_variables(tree)
        loops, macros = tree.find_all(nodes.For), tree.find_all(nodes.Macro)
        for body in [*(loop.body for loop in loops), *(macro.body for macro in macros)]:
            body.insert(0, _tick())
        code = environment.compile(tree)
        self._template = Template.from_code(environment, code, environment.make_globals(None))

    def render(self, names: Mapping[str, Any], most_characters: int) -> str:
        """May raise anything, as a template may do anything with what it is given."""
        tick = _clock(MOST_CPU_S)
        pieces: list[str] = []
        length = 0
        for piece in self._template.generate({**names, _TICK: tick}):
            tick()
            length += len(piece)
            if length > most_characters:
                raise TemplateError(f"its text has more than {most_characters} characters")
            pieces.append(piece)
        return "".join(pieces)


def _tick() -> nodes.Node:
    """A statement that calls the clock."""
    name = nodes.Name(_TICK, "load", lineno=1)
    return nodes.ExprStmt(nodes.Call(name, [], [], None, None, lineno=1), lineno=1)


def _clock(most_cpu_s: float) -> Callable[[], str]:
    """Raises TemplateError when this thread has computed for so long since now."""
    end = time.thread_time() + most_cpu_s

    def tick() -> str:
        if time.thread_time() > end:
            raise TemplateError(f"it takes more than {most_cpu_s:g} s")
        return ""

    return tick


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """With the arguments that `transformers` allows, in its order."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
