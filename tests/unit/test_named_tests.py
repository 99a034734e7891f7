"""Every test that a page of the documentation names exists."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("docs/*.md"))
# `test_name`, `test_name_*`, `test_file.py`, `tests/folder/test_file.py::test_name`
NAMED = re.compile(r"`((?:tests/[\w/]+\.py::)?(?:[\w/]+/)?test_[\w*]+(?:\.py)?)`")


@cache
def defined_in(file: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), re.M))


@cache
def all_files() -> tuple[Path, ...]:
    return tuple(
        path for folder in ("tests", "bench") for path in ROOT.glob(f"{folder}/**/test_*.py")
    )


def exists(named: str) -> bool:
    path, _, name = named.rpartition("::")
    if name.endswith(".py"):
        return any(file.as_posix().endswith("/" + name) for file in all_files())
    files = [ROOT / path] if path else all_files()
    return any(
        fnmatchcase(test, name) for file in files if file.exists() for test in defined_in(file)
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_exist(page: Path) -> None:
    missing = [named for named in NAMED.findall(page.read_text()) if not exists(named)]
    assert not missing


def test_each_threat_of_a_picture_names_a_test() -> None:
    """Each row of a table whose header ends with a column of tests."""
    rows = 0
    for table in re.split(r"\n\n+", (ROOT / "docs/media.md").read_text()):
        head, _, body = table.partition("\n|---")
        if not re.search(r"\| tests?( in `[\w/]+`)? \|$", head):
            continue
        for row in body.splitlines()[1:]:
            cells = row.strip("|").split("|")
            rows += 1
            assert NAMED.search(cells[-1]) or re.search(r"\bcases? \d", cells[-1]), row
    assert rows >= 45


def test_a_missing_name_is_noticed() -> None:
    assert not exists("test_that_nobody_wrote")
    assert not exists("tests/unit/test_named_tests.py::test_that_nobody_wrote")
    assert exists("tests/unit/test_named_tests.py::test_a_missing_name_*")
