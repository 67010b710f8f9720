"""Files of own blocks that nobody would write: each is a block that passes its trial, or is refused in plain words."""

import copy
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.graphs.block_trial import check_blocks
from stagedb.models import load_card
from tests.models.own_blocks import NAMES, content, with_block
from tests.models.test_own_blocks import written
from tests.sampling import examples

LONGEST = 1500
"""Characters of an error, at most."""

WORDS = st.sampled_from(
    [
        *(
            "input",
            "output",
            "batch",
            "seq",
            "hidden",
            "inner",
            "w1",
            "w2",
            "gate",
            "silu",
            "einsum",
            "of",
            "tp",
            "key",
        ),
        *("batch seq hidden, inner hidden -> batch seq inner", "->", ",", "", "\x1b[2J", "a" * 300, "inner inner"),
        *("batch seq inner, batch seq inner -> batch seq", "softmax", "norm", "add", "multiply", "scale"),
    ]
)
VALUES = st.one_of(
    WORDS,
    st.none(),
    st.booleans(),
    st.integers(-5, 1 << 40),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(WORDS, max_size=3),
    st.dictionaries(WORDS, WORDS, max_size=2),
)


def places(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every entry."""
    below = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [at, *(path for key, value in below for path in places(value, (*at, key)))]


@st.composite
def changed(draw: st.DrawFn) -> Any:
    """A block with a few entries that are others, gone, twice, or under another name."""
    block: Any = {"root": copy.deepcopy(content(draw(st.sampled_from(NAMES))))}
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([each for each in places(block) if each]))
        node = block
        for key in path[:-1]:
            node = node[key]
        match draw(st.sampled_from(["value", "word", "gone", "name", "twice"])):
            case "value":
                node[path[-1]] = draw(VALUES)
            case "word" if isinstance(node[path[-1]], str):
                words = node[path[-1]].split(" ")
                words[draw(st.integers(0, len(words) - 1))] = draw(WORDS)
                node[path[-1]] = " ".join(words)
            case "gone" if len(path) > 1:
                del node[path[-1]]
            case "name" if isinstance(node, dict) and len(path) > 1:
                node[draw(WORDS)] = node.pop(path[-1])
            case "twice" if isinstance(node, list):
                node.insert(0, copy.deepcopy(node[path[-1]]))
    return block["root"]


def accepted(read: Any) -> bool:
    """Whether a card is made and its blocks pass; otherwise it is refused in a short, printable text."""
    try:
        check_blocks(read())
    except UsageError as error:
        assert len(str(error)) < LONGEST
        assert str(error).replace("\n", "").isprintable()
        return False
    return True


@settings(max_examples=examples(40), deadline=None)
@given(block=changed())
def test_a_changed_block_passes_or_is_refused(block: Any) -> None:
    accepted(lambda: with_block("gated", blocks={"mine": block}))
    if isinstance(block, dict):
        with tempfile.TemporaryDirectory() as folder:
            path = written(Path(folder), yaml.safe_dump(block, sort_keys=False))
            accepted(lambda: load_card(path))


@settings(max_examples=examples(40), deadline=None)
@given(data=st.binary(max_size=40), at=st.integers(0, 400), cut=st.integers(0, 30))
def test_a_damaged_file_passes_or_is_refused(data: bytes, at: int, cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole = yaml.safe_dump(content("low_rank"), sort_keys=False)
        path = written(Path(folder), whole)
        text = whole.encode()
        (Path(folder) / "mine.yaml").write_bytes(text[:at] + data + text[at + cut :])
        accepted(lambda: load_card(path))


def chain(count: int) -> dict[str, Any]:
    """A block of so many steps."""
    steps: list[Any] = [{"s0": {"scale": 0.5, "of": "input"}}]
    steps += [{f"s{number}": {"add": [f"s{number - 1}", f"s{number - 1}"]}} for number in range(1, count - 1)]
    return {"steps": [*steps, {"output": {"silu": f"s{count - 2}"}}]}


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (chain(65), "65 steps: at most 64"),
        ({"axes": {f"a{number}": 2 for number in range(17)}, "steps": []}, "17 axes: at most 16"),
        (
            {
                "axes": dict.fromkeys("abcd", 2),
                "parameters": {"w": {"axes": "a b, c d"}},
                "steps": [
                    {"x": {"einsum": "batch seq hidden, a b c d -> batch seq hidden a b c d", "of": ["input", "w"]}},
                    {"output": {"silu": "x"}},
                ],
            },
            "makes 7 axes: at most 6",
        ),
        ({"steps": [{"output": {"add": ["input"] * 9}}]}, "2 to 8 operands, not 9"),
        ({"axes": {"wide": 1 << 32}, "steps": []}, "whole number from 1"),
        ({"steps": [{"output": {"einsum": "x" * 300, "of": ["input", "input"]}}]}, "at most 200 characters"),
        ({"steps": [{"output": {"silu": {"silu": "input"}}}]}, "takes 1 names"),
        ({"steps": [{"a": {"softmax": "input"}, "b": 1}]}, "step 1 takes a name with its operator"),
        (
            {
                "axes": {"key": "seq"},
                "steps": [
                    {"s": {"einsum": "batch seq hidden, batch key hidden -> batch key seq", "of": ["input", "input"]}},
                    {"p": {"softmax": "s"}},
                    {"output": {"einsum": "batch key seq, batch key hidden -> batch seq hidden", "of": ["p", "input"]}},
                ],
            },
            "softmax reads all values along seq, of which ranks hold parts",
        ),
    ],
)
def test_sizes_are_bounded(block: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        with_block("gated", blocks={"mine": block})


def test_the_longest_block_passes() -> None:
    check_blocks(with_block("gated", blocks={"mine": chain(30)}))


def test_a_file_is_bounded(tmp_path: Path) -> None:
    path = written(tmp_path, "# " + "x" * (1 << 16))
    with pytest.raises(UsageError, match=r"mine\.yaml: it is larger than 64 KiB"):
        load_card(path)
    (tmp_path / "mine.yaml").write_text("steps: &a [*a]")
    with pytest.raises(UsageError, match="anchors and aliases"):
        load_card(path)
    (tmp_path / "mine.yaml").write_text("steps: !!python/object/apply:os.system ['true']")
    with pytest.raises(UsageError, match="the tag"):
        load_card(path)
    (tmp_path / "mine.yaml").unlink()
    with pytest.raises(UsageError, match=r"cannot read the block .*mine\.yaml: No such file"):
        load_card(path)
