"""Documents of people: what is read, what is refused, and that nothing else happens."""

import json
import math
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.files import parse_document, read_bytes, read_document, read_text, shown

BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]\n" for i in range(9)
)

REFUSED = {
    "an alias bomb": ("YAML", BOMB, "line 1: anchors and aliases"),
    "an alias alone": ("YAML", "a: *b", "line 1: anchors and aliases"),
    "a tag": ("YAML", "a: 1\nb: !!bool maybe", "line 2: the tag"),
    "a tag of time": ("YAML", "!!timestamp x", "line 1: the tag"),
    "a tag of Python": ("YAML", "!!python/object/apply:os.system ['true']", "line 1: the tag"),
    "deep lists": ("YAML", "[" * 100_000, "nested too deeply"),
    "deep mappings": ("YAML", "".join(f"{' ' * i}a:\n" for i in range(100)), "nested too deeply"),
    "a long number": ("YAML", "a: 1" + "0" * 5000, "line 1: a number with 5001 characters"),
    "a large number": ("YAML", "a: 0x" + "f" * 300, "at most 64 bits"),
    "an infinite number": ("YAML", "a: -.inf", "must be finite"),
    "no number": ("YAML", "a: .nan", "must be finite"),
    "a key that appears twice": ("YAML", "a: 1\nb: 2\na: 3", "line 3: the key 'a' appears twice"),
    "a list as key": ("YAML", "? [1]\n: 2", "line 1: a key must be a text"),
    "two documents": ("YAML", "---\na: 1\n---\nb: 2", "line 3: not YAML"),
    "a control character": ("YAML", "a: \x07", "not YAML"),
    "half of a surrogate pair in YAML": ("YAML", 'a: "\\ud800"', "not YAML"),
    "half of a surrogate pair": ("JSON", '["\\ud800"]', "half of a surrogate pair"),
    "a key in JSON that appears twice": ("JSON", '{"a": {"b": 1, "b": 2}}', "the key 'b' appears twice"),
    "a constant of JavaScript": ("JSON", "[NaN]", "has NaN"),
    "a number without end": ("JSON", "[1e999]", "must be finite"),
    "a long number in JSON": ("JSON", "[" + "9" * 5000 + "]", "too long"),
    "deep JSON": ("JSON", "[" * 100_000, "nested too deeply"),
    "not too deep for Python": ("JSON", "[" * 40 + "]" * 40, "nested too deeply"),
    "half of a document": ("JSON", '{"a":', "not JSON"),
    "a key in TOML that appears twice": ("TOML", "a = 1\na = 2", "not TOML"),
    "a date in TOML": ("TOML", "a = 2024-01-01", "a date: write it as a text"),
    "deep TOML": ("TOML", "a = " + "[" * 10_000, "nested too deeply"),
    "a long number in TOML": ("TOML", "a = 1" + "0" * 5000, "more than 400 digits"),
    "infinity in TOML": ("TOML", "a = inf", "must be finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_document_with_more_than_data_is_refused(case: str) -> None:
    form, text, reason = REFUSED[case]
    with pytest.raises(UsageError, match=reason) as refused:
        parse_document(text, form, "the plan mine")
    message = str(refused.value)
    assert message.startswith("the plan mine")
    assert message.isprintable()
    assert len(message) < 400


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("", None),
        ("a: yes\nb: ~\nc: 0x10\nd: 1.5\ne: text", {"a": True, "b": None, "c": 16, "d": 1.5, "e": "text"}),
        ("a: 2024-01-01\n<<: b", {"a": "2024-01-01", "<<": "b"}),
        ("1: one\ntrue: two", {"1": "one", "true": "two"}),
        ("- [a, {b: [c]}]", [["a", {"b": ["c"]}]]),
    ],
)
def test_plain_yaml_is_read(text: str, content: Any) -> None:
    assert parse_document(text, "YAML", "the plan mine") == content


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_data_is_what_was_written(content: Any) -> None:
    assert parse_document(json.dumps(content), "JSON", "the plan") == content
    written = yaml.safe_dump(content, allow_unicode=True)
    if "!!" not in written and "&id" not in written:
        assert _same(parse_document(written, "YAML", "the plan"), yaml.safe_load(written))


def _same(one: Any, other: Any) -> bool:
    """Equal but for floats that YAML writes as `1e+20`, which its readers take for texts."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other or (isinstance(one, str) and isinstance(other, float) and float(one) == other))


@given(st.sampled_from(["YAML", "JSON", "TOML"]), st.text(max_size=80))
def test_any_text_is_read_or_refused(form: str, text: str) -> None:
    try:
        content = parse_document(text, form, "the plan")
    except UsageError as refused:
        assert str(refused).isprintable()
        return
    if form == "TOML":
        assert content == tomllib.loads(text)
    json.dumps(content, allow_nan=False).encode()


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, kind in ((tmp_path, "a directory"), (pipe, "a pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(UsageError, match=f"cannot read the plan .*: it is {kind}.*--plan"):
            read_bytes(path, "plan", option="--plan")
    with pytest.raises(UsageError, match="No such file"):
        read_bytes(tmp_path / "none", "plan")
    with pytest.raises(UsageError, match="the character NUL"):
        read_bytes(tmp_path / "a\0b", "plan")
    with pytest.raises(UsageError, match="too long"):
        read_bytes(tmp_path / ("n" * 5000), "plan")


def test_a_file_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(UsageError, match="larger than 1 MiB, the limit for a plan"):
        read_document(path, "plan")
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert read_text(path, "plan") == "{}"
    path.write_bytes(b"{\xff}")
    with pytest.raises(UsageError, match="not UTF-8 text: byte 1"):
        read_text(path, "plan")
    with pytest.raises(UsageError, match=r"must end in \.yaml, \.yml or \.json"):
        read_document(tmp_path / "plan.txt", "plan")


def test_a_value_in_an_error_is_short_and_printable() -> None:
    assert shown("tp") == "'tp'"
    assert shown([1, 2, 3]) == "[1, 2, 3]"
    assert len(shown("x" * 10**6)) < 80
    assert len(shown([["x" * 100] * 100] * 100)) < 210
    assert len(shown(10**4000)) < 80
    assert shown("\x1b[31m\u202e").isprintable()
    assert shown(math.inf) == "inf"
