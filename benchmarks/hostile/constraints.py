"""Hostile constraints: those that are hard to compile, and those with costly masks."""

from __future__ import annotations

from requested import Constraint
from runtime.grammar.constraints import of_schema


def hostile(number: int) -> Constraint:
    """The `number`-th of an endless series; no two are alike."""
    n = number // len(_KINDS)
    return _KINDS[number % len(_KINDS)](n)


def _nested(n: int) -> Constraint:
    schema: dict[str, object] = {"const": n}
    for _ in range(90):
        schema = {"type": "array", "items": schema}
    return of_schema(schema)


def _alternations(n: int) -> Constraint:
    either = [
        {"anyOf": [{"properties": {f"p{i}": {"const": j + n}}} for j in range(6)]}
        for i in range(12)
    ]
    return of_schema({"allOf": either})


def _enum(n: int) -> Constraint:
    return of_schema({"enum": [f"value {i} of {n + i * 7919 % 10_007}" for i in range(8000)]})


def _references(n: int) -> Constraint:
    chain = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(7000 + n)}
    return of_schema({"$ref": "#/$defs/a0", "$defs": chain})


def _recursion(n: int) -> Constraint:
    either = [{"$ref": "#/$defs/a"}, {"const": n}]
    return of_schema({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": either}}})


def _multiples(n: int) -> Constraint:
    return of_schema({"type": "integer", "multipleOf": 999_983 + 2 * n})


def _pattern(n: int) -> Constraint:
    return Constraint("regex", f".*(a.{{{50 + n}}}|b.{{60}}|c.{{70}}|d.{{80}}).*x")


def _repetition(n: int) -> Constraint:
    return Constraint("regex", f"(\\p{{L}}{{1,50}}\\p{{N}}{{1,{50 + n}}}){{1,50}}")


def _ambiguity(n: int) -> Constraint:
    return Constraint("lark", f'start: s\ns: s s s | s s | /[a-z]+/ | /[a-y]+/ | /.+/ | "{n}"\n')


def _rules(n: int) -> Constraint:
    chain = "\n".join(f"r{i}: r{i + 1}" for i in range(7000 + n))
    return Constraint("lark", f'start: r0\n{chain}\nr{7000 + n}: "a"')


_KINDS = (
    _nested, _alternations, _enum, _references, _recursion, _multiples, _pattern, _repetition,
    _ambiguity, _rules,
)  # fmt: skip


def costly(number: int) -> Constraint:
    """The `number`-th of those that compile fast, and have costly masks; no two are alike."""
    n = number // len(_COSTLY)
    return _COSTLY[number % len(_COSTLY)](n)


def _bounded(n: int) -> Constraint:
    return Constraint("regex", f"[^aeiou]{{{1000 + n}}}")


def _overlapping(n: int) -> Constraint:
    patterns = [f"^[a-z ]*{chr(97 + i % 26)}.{{{i + n}}}$" for i in range(20)]
    return of_schema({"anyOf": [{"type": "string", "pattern": pattern} for pattern in patterns]})


def _excluded(n: int) -> Constraint:
    return Constraint("regex", f"(.*[a-m].{{{12 + n}}}[n-z]|.*[n-z].{{14}}[a-m]).*")


def _words(n: int) -> Constraint:
    return Constraint("regex", f"(\\w+ ){{1,{1000 + n}}}")


_COSTLY = (_bounded, _overlapping, _excluded, _words)
