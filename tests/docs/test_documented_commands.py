"""Every command of the README and the pages is one that its program accepts.

Options are read by the programs' own parsers, in this process, and bodies of curl by the models of
the handlers. `tests/server/apis/test_official.py` and others also run the examples of the APIs. A
block with commands for something that is not here begins with a comment, `# needs ...`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import TypeAdapter

from client.load.http.target import parse_target
from client.options import client as client_options
from client.options import compare as compare_options
from client.options.rules import check
from cluster.config import read as read_cluster
from launcher.config import read as read_launcher
from model_server.config import read as read_model_server
from router.config import parse_args as read_router
from serving.config import Config
from tests.support.dialects import OPERATIONS

ROOT = Path(__file__).parents[2]
PLACES = ("*.md", "docs/*.md", "*/README.md", "learn/[0-9]*.md")
PAGES = sorted(page for place in PLACES for page in ROOT.glob(place))
FENCED = re.compile(r"^(```+)(\w*)\n(.*?)^\1$", re.DOTALL | re.MULTILINE)
IN_A_LINE = re.compile(r"`((?:\./(?:server|compare|test)\.sh|python) [^`]+)`")
EVERYWHERE = {"cd", "export", "git", "mkdir", "pip", "printf", "source"}
ROUTERS_OWN = {
    ("GET", "/upstreams"), ("POST", "/upstreams"), ("DELETE", "/upstreams"),
    ("POST", "/upstreams/drain"),
}  # fmt: skip


class Understood(Exception):  # noqa: N818 - no error
    """Raised in place of doing what was asked."""


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, comments and redirections left out."""
    text = re.sub(r"(^|\s)#.*", r"\1", text.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for token in [*lexer, "\n"]:
        if token and set(token) <= set(";&|\n"):
            if words:
                yield words
            words = []
        else:
            words.append(token)


def documented() -> Iterator[tuple[str, bool, list[str]]]:
    """Page, whether the command's block says that it needs something, command."""
    for page in PAGES:
        name, text = str(page.relative_to(ROOT)), page.read_text()
        for _, language, body in FENCED.findall(text):
            assert language, f"{name}: a block that names no language: {body[:60]}"
            if language in ("sh", "bash"):
                for command in commands(body):
                    yield name, body.startswith("# needs "), command
        for span in IN_A_LINE.findall(FENCED.sub("", text)):
            yield name, False, ["2" if word == "N" else word for word in shlex.split(span)]


READ: Mapping[str, Callable[[list[str], Mapping[str, str]], object]] = {
    "router": lambda args, environ: read_router(args, {"UPSTREAMS": "http://a:1", **environ}),
    "launcher": read_launcher, "cluster": read_cluster, "model-server": read_model_server,
}  # fmt: skip


def serve(args: Sequence[str], environ: Mapping[str, str]) -> None:
    name, *rest = args or [""]
    if name in READ:
        READ[name](rest, environ)
    elif name == "modes":  # all three, with the same options
        Config.from_args(["dynamic", *rest], environ)
    elif args != ["--list-models"]:
        Config.from_args(args, environ)


def play(args: Sequence[str]) -> None:
    asked = client_options.parser().parse_args(args)
    check(asked)
    if asked.target is not None:
        parse_target(asked.target)
    if asked.workload is None and asked.prompt is None:
        client_options.workload_of(asked)


def compare(args: Sequence[str]) -> None:
    for system in compare_options.options_from(compare_options.parser().parse_args(args)).systems:
        if system.command is not None:
            serve(system.command[1:], {})


def module(name: str, args: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python -m`, up to what its parser makes of the arguments; without any it is a name."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_stop(parser: argparse.ArgumentParser) -> None:
        parse(parser)
        raise Understood

    monkeypatch.setattr(sys, "argv", [name, *args])
    monkeypatch.setattr(
        argparse.ArgumentParser, "parse_args", lambda parser, _=None: parse_and_stop(parser)
    )
    found = importlib.import_module(name)
    if hasattr(found, "__path__"):
        found = importlib.import_module(f"{name}.__main__")
    if not args:
        assert callable(found.main)
        return
    with pytest.raises(Understood):
        found.main()


def exist(args: Sequence[str]) -> None:
    for word in args:
        assert not word.startswith("tests") or (ROOT / word).exists(), word


def ask(args: Sequence[str]) -> None:
    """The options of curl that the pages use."""
    curl = argparse.ArgumentParser()
    for name in ("-H", "-X", "-d", "url"):
        curl.add_argument(name)
    for name in ("-s", "-i", "-N"):
        curl.add_argument(name, action="store_true")
    asked = curl.parse_args(args)
    url = asked.url if "://" in asked.url else f"http://{asked.url}"
    path = asked.X or ("POST" if asked.d else "GET"), urlsplit(url).path
    if path in ROUTERS_OWN:
        json.loads(asked.d or "{}")
    elif asked.d is None:
        assert path in OPERATIONS
    else:
        TypeAdapter(OPERATIONS[path].body).validate_json(asked.d)


@pytest.mark.parametrize(
    ("page", "marked", "command"),
    [
        pytest.param(*case, id=f"{case[0]}: {' '.join(case[2])[:100]}")
        for case in documented()
    ],
)  # fmt: skip
def test_a_documented_command_is_accepted(
    page: str, marked: bool, command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    variables = [word for word in command if re.match(r"[A-Z_]+=", word)]
    environ = dict(word.split("=", 1) for word in variables)
    program, *args = command[len(variables) :]
    if "--help" in args:
        with pytest.raises(SystemExit) as ended:
            run(program, [word for word in args if word != "MODE"], environ, monkeypatch, marked)
        assert not ended.value.code
    else:
        run(program, args, environ, monkeypatch, marked)


def run(
    program: str,
    args: list[str],
    environ: Mapping[str, str],
    monkeypatch: pytest.MonkeyPatch,
    marked: bool,
) -> None:
    match Path(program).name, args:
        case "python", ["client/client.py", *rest]:
            play(rest)
        case "python", ["-m", name, *rest]:
            module(name, rest, monkeypatch)
        case "python", [path, *rest]:
            module(path.removesuffix(".py").replace("/", "."), rest, monkeypatch)
        case "server.sh", _:
            serve(args, environ)
        case "compare.sh", _:
            compare(args)
        case "test.sh", _:
            exist(args)
        case "curl", _:
            ask(args)
        case name, _:
            assert marked or name in EVERYWHERE, f"neither checked nor marked: {name}"
