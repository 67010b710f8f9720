"""Published throughputs of serving next to plans: nothing is fitted to them."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def test_published_throughputs_are_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each within 20 %, and their mean within 12 %."""
    spec = importlib.util.spec_from_file_location("serving_steps", DOCS / "serving_steps.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(__import__("sys").modules, "serving_steps", found)
    spec.loader.exec_module(found)
    errors = [abs(each.error) for each in found.ROWS]
    assert max(errors) < 0.2
    assert sum(errors) / len(errors) < 0.12
