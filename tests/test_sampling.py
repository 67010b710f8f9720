"""The table of slow tests: its lines are about tests that exist, and what the usual run leaves out whole is covered."""

import re
from pathlib import Path

import pytest

from tests import sampling
from tests.sampling import SLOW_TESTS, SlowTest, slow_tests

ROOT = Path(__file__).parent


def missing(tests: list[str]) -> list[str]:
    """Those of these tests, as `file::test`, that are in no file."""
    found = []
    for test in tests:
        file, _, name = test.partition("::")
        path = ROOT / file
        if not path.is_file() or not re.search(rf"^def {name}\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            found.append(test)
    return found


def test_every_slow_test_exists() -> None:
    assert missing(list(slow_tests())) == []
    assert missing(["none.py::test_a", "test_sampling.py::test_b"]) == ["none.py::test_a", "test_sampling.py::test_b"]


def test_what_no_usual_run_tries_has_its_cover() -> None:
    lines = SLOW_TESTS.read_text(encoding="utf-8").splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("#") and line.split()[1].rpartition("/")[2] == "0":
            assert after.startswith("#   usually: "), line
            named = re.findall(r"tests/([\w/]+\.py)(?:::(\w+))?", after)
            assert all((ROOT / file).is_file() for file, _ in named), after
            assert missing([f"{file}::{name}" for file, name in named if name]) == []


def test_the_usual_run_has_the_same_cases_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    some, none, fewer = SlowTest(30.0, 3, 3), SlowTest(30.0, 0, 0), SlowTest(30.0, 2, 6)
    for word in ("ALL", "MORE"):
        monkeypatch.setattr(sampling, word, False)
    assert [case for case in range(8) if some.is_tried(case)] == [0, 3, 6]
    assert [case for case in range(8) if fewer.is_tried(case)] == [0, 6]
    assert not any(none.is_tried(case) for case in range(8))
    assert [each.tried_seconds for each in (some, none, fewer)] == [10.0, 0.0, 5.0]
    monkeypatch.setattr(sampling, "MORE", True)
    assert [case for case in range(8) if fewer.is_tried(case)] == [0, 2, 4, 6]
    assert [each.tried_seconds for each in (some, none, fewer)] == [10.0, 0.0, 15.0]
    monkeypatch.setattr(sampling, "ALL", True)
    assert all(each.is_tried(case) for each in (some, none, fewer) for case in range(8))
    assert [each.tried_seconds for each in (some, none, fewer)] == [30.0, 30.0, 30.0]


def test_cases_share_what_each_may_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "ALL", False)
    assert [sampling.part("abcde", case, 2) for case in range(2)] == ["ace", "bd"]
    monkeypatch.setattr(sampling, "ALL", True)
    assert [sampling.part("abcde", case, 2) for case in range(2)] == ["abcde"] * 2
