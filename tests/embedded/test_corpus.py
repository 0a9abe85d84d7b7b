from __future__ import annotations

from pathlib import Path

import pytest

from embedded.corpus import is_held_out, read_corpus


@pytest.fixture
def library(tmp_path: Path) -> Path:
    for index in range(100):
        (tmp_path / f"module{index}.py").write_text(f"number = {index}\n")
    return tmp_path


def test_each_file_is_on_exactly_one_side(library: Path) -> None:
    corpus = read_corpus(library)
    texts = {path.name: path.read_text() for path in library.iterdir()}
    assert set(corpus.held_out) == {text for name, text in texts.items() if is_held_out(name)}
    assert set(corpus.training) == set(texts.values()) - set(corpus.held_out)


def test_a_new_file_leaves_the_side_of_the_others(library: Path) -> None:
    before = read_corpus(library)
    (library / "another.py").write_text("import this\n")
    after = read_corpus(library)
    assert set(before.training) <= set(after.training)
    assert set(before.held_out) <= set(after.held_out)
    assert before.sha256 != after.sha256


@pytest.mark.parametrize(
    "path",
    [
        "site-packages/a.py",
        "x/__pycache__/a.py",
        "encodings/cp1.py",
        "_sysconfigdata_x.py",
        "a.txt",
    ],
)
def test_files_that_are_no_source_of_the_library_are_left_out(library: Path, path: str) -> None:
    before = read_corpus(library)
    (library / path).parent.mkdir(parents=True, exist_ok=True)
    (library / path).write_text("excluded = True\n")
    assert read_corpus(library) == before


def test_a_file_that_is_not_utf8_is_left_out(library: Path) -> None:
    before = read_corpus(library)
    (library / "latin.py").write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\n".encode("latin-1"))
    assert read_corpus(library) == before


def test_a_folder_with_nothing_to_learn_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="too few Python files"):
        read_corpus(tmp_path)
