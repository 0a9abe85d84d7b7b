"""Declares and reads options, for the server and for the router.

A program's options are the fields of a frozen dataclass that inherits `Options`, or another
program; the text below a field is its help. Command line, environment, `--help` and errors are all
made from these fields. An option overrides its environment variables, which override the default.
Needs the standard library only.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import difflib
import functools
import inspect
import math
import os
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from itertools import islice, pairwise
from typing import Any, ClassVar, Literal, NoReturn, Self, get_args, get_origin, get_type_hints


class OptionError(ValueError):
    """A value that is not allowed; the message names the option, the value and what is allowed."""


@dataclass(frozen=True, slots=True)
class OptionGroup:
    """Options that `--help` shows under one title."""

    title: str
    only: str | None = None  # what they need to have an effect: `static`, `policy tgi`

    def option(self, default: Any, *, secret: bool = False, **rules: Any) -> Any:
        """A field of `Options`. `rules`: `variables` and all fields of `Option` below it. Where
        the default is `MISSING`, the value is given on the command line by its position."""
        metadata = {"group": self, "secret": secret, **rules}
        return dataclasses.field(default=default, repr=not secret, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Option:
    """One option as the command line and the environment see it."""

    name: str
    default: Any
    kind: type  # a key of _KINDS
    help: str
    group: OptionGroup
    variables: Sequence[str]  # of the environment; the first that is set counts
    choices: Sequence[str] = ()
    least: float = -math.inf
    most: float = math.inf
    pattern: str | None = None  # what it allows is said in the help
    parse: Callable[[str], Any] | None = None  # raises ValueError, which says what is wrong
    secret: bool = False
    flags: Sequence[str] = ()  # others beside --name

    @property
    def names(self) -> list[str]:
        if self.default is MISSING:
            return [self.name.upper()]
        return [flag(self.name), *self.flags]

    @property
    def shown_default(self) -> str:
        text = _text(self.default) or "none"
        return text.removesuffix(".0") if self.kind is float else text

    def read(self, text: str) -> Any:
        """Raises OptionError."""
        parse, noun, _ = _KINDS[self.kind]
        try:
            return (self.parse or parse)(text)
        except ValueError as error:
            if self.parse:
                raise OptionError(f"{self._label}: {error}") from None
            raise self._refusal(text, noun) from None

    def check(self, value: Any) -> None:
        """Raises OptionError."""
        if self.choices and value not in self.choices:
            raise self._refusal(value, ", ".join(self.choices))
        if isinstance(value, int | float):
            if not self.least <= value <= self.most or math.isinf(value):  # so is nan
                above = "or more" if math.isinf(self.most) else f"to {self.most}"
                raise self._refusal(value, f"{self.least} {above}")
        elif self.pattern is not None and not re.fullmatch(self.pattern, value):
            raise self._refusal(value, self.help)
        elif value == "" and self.default != "":
            raise self._refusal(value, "text that is not empty")

    @property
    def _label(self) -> str:
        return f"{', '.join(self.names)} ({', '.join(self.variables)})"

    def _refusal(self, value: Any, allowed: str) -> OptionError:
        shown = "wrong" if self.secret else repr(value)
        return OptionError(f"{self._label} is {shown}; allowed: {allowed}")

    def add_to(self, group: argparse._ArgumentGroup) -> None:
        help = self.help.replace("%", "%%")
        if self.default is MISSING:
            group.add_argument(self.name, metavar=self.name.upper(), help=help)
            return
        is_switch = self.kind is bool
        group.add_argument(
            *self.names,
            dest=self.name,
            metavar="|".join(self.choices) or _KINDS[self.kind][2],
            nargs="?" if is_switch else None,
            const="true" if is_switch else None,
            help=f"{help} (default {self.shown_default}; {', '.join(self.variables)})",
        )


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a program. Raises OptionError."""

    usage: ClassVar[str]
    description: ClassVar[str]
    prefix: ClassVar[str] = ""  # of environment variables that have no other name

    def __post_init__(self) -> None:
        for option in self.declared():
            if (value := getattr(self, option.name)) is not None:
                option.check(value)

    @classmethod
    @functools.cache
    def declared(cls) -> tuple[Option, ...]:
        helps: dict[str, str] = {}
        for program in reversed([each for each in cls.__mro__ if issubclass(each, Options)]):
            (source,) = ast.parse(inspect.cleandoc(inspect.getsource(program))).body
            assert isinstance(source, ast.ClassDef)
            helps |= {
                ast.unparse(field.target): " ".join(ast.literal_eval(text.value).split())
                for field, text in pairwise(source.body)
                if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
            }
        hints, declared = get_type_hints(cls), []
        for field in dataclasses.fields(cls):
            name, hint = field.name, hints[field.name]
            kind, choices = (str, get_args(hint)) if get_origin(hint) is Literal else (hint, ())
            if get_origin(kind) is not None:  # `int | None` and `tuple[str, ...]`
                kind = tuple if get_origin(kind) is tuple else get_args(kind)[0]
            rules = {"choices": choices, "variables": [cls.prefix + name.upper()], **field.metadata}
            declared.append(Option(name, field.default, kind, helps[name], **rules))
        return tuple(declared)

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, given: Mapping[str, str] | None = None
    ) -> Self:
        """`given`: further variables, which override those of the environment. Raises
        OptionError."""
        texts_of = {**of_people(environ), **(given or {})}
        values = {}
        for option in cls.declared():
            texts = [texts_of[name] for name in option.variables if name in texts_of]
            if texts:
                values[option.name] = option.read(texts[0])
            elif option.default is MISSING:
                allowed = ", ".join(option.choices)
                raise OptionError(f"{option.variables[0]} is not set; allowed: {allowed}")
        return cls(**values)

    @classmethod
    def from_args(cls, args: Sequence[str], environ: Mapping[str, str] = os.environ) -> Self:
        """The command line; what it leaves out comes from the environment, then the defaults.
        Says what is not allowed in one line, and exits with status 2."""
        known, unknown = cls._parser().parse_known_args(args)
        if unknown:
            word, advice = unknown[0].partition("=")[0], "--help lists all options"
            if not word.startswith("-"):
                cls.refuse(f"unexpected argument {word!r}; {advice}")
            flags = [name for option in cls.declared() for name in option.names]
            if near := difflib.get_close_matches(word, flags, n=1):
                advice = f"did you mean {near[0]}?"
            cls.refuse(f"there is no option {word}; {advice}")
        given = vars(known)
        texts = {o.variables[0]: given[o.name] for o in cls.declared() if given[o.name] is not None}
        try:
            return cls.from_environment(environ, texts)
        except OptionError as error:
            cls.refuse(str(error))

    @classmethod
    def split(cls, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Splits a command line into these options and those of the program that is started."""
        names = {name for option in cls.declared() for name in option.names}
        mine: list[str] = []
        others: list[str] = []
        left = iter(words)
        for word in left:
            is_mine = word.partition("=")[0] in names
            (mine if is_mine else others).append(word)
            if is_mine and "=" not in word:
                mine += islice(left, 1)
        return mine, others

    @classmethod
    def refuse(cls, message: str) -> NoReturn:
        """Ends the process as a wrong option does."""
        cls._parser().error(message)

    @classmethod
    def _parser(cls) -> argparse.ArgumentParser:
        epilog = "Brackets: default and environment variables; the command line overrides these."
        parser = argparse.ArgumentParser(
            "server.sh",
            cls.usage,
            cls.description,
            epilog,
            formatter_class=_Help,
            allow_abbrev=False,
        )
        groups = [option.group for option in cls.declared()]  # a group may be inherited in part
        in_order = reversed(dict.fromkeys(reversed(groups)))
        sections = {group: parser.add_argument_group(group.title) for group in in_order}
        for option in cls.declared():
            option.add_to(sections[option.group])
        return parser

    def as_dict(self) -> dict[str, Any]:
        """For display, without secrets."""
        values = [(option, getattr(self, option.name)) for option in self.declared()]
        return {o.name: "(set)" if o.secret and value else value for o, value in values}

    def as_environment(self) -> dict[str, str]:
        """The environment from which `from_environment` reads the same configuration."""
        values = {option.variables[0]: getattr(self, option.name) for option in self.declared()}
        return {name: _text(value) for name, value in values.items() if value is not None}


class _Help(argparse.HelpFormatter):
    def _split_lines(self, text: str, width: int) -> list[str]:
        """Breaks no name at its hyphens."""
        return textwrap.wrap(text, width, break_on_hyphens=False)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def of_people(environ: Mapping[str, str]) -> dict[str, str]:
    """Without what Kubernetes sets for a Service: NAME_PORT=tcp://ADDRESS:PORT, whatever NAME is.
    <https://kubernetes.io/docs/tutorials/services/connect-applications-service/>"""
    of_service = re.compile(r"(tcp|udp|sctp)://\S+:\d+")
    return {
        name: text
        for name, text in environ.items()
        if not (name.endswith("_PORT") and of_service.fullmatch(text))
    }


def comma_separated(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _boolean(text: str) -> bool:
    if text.lower() not in {"true", "1", "yes", "false", "0", "no", ""}:
        raise ValueError
    return text.lower() in {"true", "1", "yes"}


def _text(value: Any) -> str:
    """What `read` turns into this value; nothing for None."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(value)
    return "" if value is None else str(value)


# how a text is read, what it has to be, and how `--help` shows it
_KINDS: dict[type, tuple[Callable[[str], Any], str, str]] = {
    bool: (_boolean, "true or false", "true|false"),
    int: (int, "a whole number", "N"),
    float: (float, "a number", "X"),
    str: (str, "a text", "TEXT"),
    tuple: (comma_separated, "a list with commas", "A,B"),
}
