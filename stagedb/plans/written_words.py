"""A plan's words as people write them: on the command line, in a file, in a mapping. Types are checked here."""

import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import did_you_mean, shown
from stagedb.mentions import Word
from stagedb.plans.aspects import FORMAT_WORDS, GRAPH_WORDS, PLAN_WORDS
from stagedb.plans.aspects.degrees import RANK_ORDER

__all__ = ["DTYPE_WORDS", "OPTION_WORDS", "RANK_ORDER", "WORDS", "read_plan_file", "typed_words"]

# Megatron-Core's texts for the layers of each chunk of a pipeline: `Et|(tt|)*30mL`.
#
# E is the embedding, t a layer, m the layers of multi-token prediction, L the loss, and | the end of a chunk; `*N`
# repeats a letter or what is in brackets (`--pipeline-model-parallel-layout`; Megatron-Core parses it in
# core/transformer/pipeline_parallel_layer_layout.py).

_LETTERS = re.compile(r"[EtmL|()*\d,\s]*", re.ASCII)
_REPEATED = re.compile(r"(?:\(([EtmL|]*)\)|([EtmL|]))\*(\d{1,4})", re.ASCII)

MOST = 1 << 16
"""Letters of a layout. The longest pipelines have some thousand layers."""


def is_layout(text: str) -> bool:
    """Whether a text is written as a layout, and not as numbers."""
    return any(letter in text for letter in "EtmL|")


def parse_layout_text(text: str) -> tuple[int, ...]:
    """The layers of each chunk. UsageError for a text that is no layout, or one that stagedb cannot run."""
    whole = _spelled_out(text)
    if set(whole) - set("EtmL|"):
        raise _refusal(text, "it has brackets that do not match, or a repeat of nothing")
    chunks = whole.split("|")
    if "E" not in chunks[0] or "L" not in chunks[-1] or whole.count("E") != 1 or whole.count("L") != 1:
        raise _refusal(text, "the embedding (E) is in the first chunk, and the loss (L) in the last one, once each")
    if "m" in "".join(chunks[:-1]):
        raise _refusal(text, "layers for further tokens (m) are in the last chunk, with the loss")
    if not re.fullmatch(r"Et*", chunks[0]) and len(chunks) > 1:
        raise _refusal(text, "the first chunk begins with the embedding (E), and layers (t) follow")
    if not re.fullmatch(r"E?t*m*L", chunks[-1]):
        raise _refusal(text, "the last chunk has layers (t), then those for further tokens (m), then the loss (L)")
    return tuple(chunk.count("t") for chunk in chunks)


def _spelled_out(text: str) -> str:
    """The letters with all repeats written out."""
    whole = re.sub(r"[\s,]", "", text)
    if not _LETTERS.fullmatch(whole):
        raise _refusal(text, "it takes E, t, m, L, |, brackets, and * with a number")
    while found := _REPEATED.search(whole):
        inside, times = found[1] if found[1] is not None else found[2], int(found[3])
        if len(whole) + len(inside) * times > MOST:
            raise _refusal(text, f"it has more than {MOST} letters")
        whole = whole[: found.start()] + inside * times + whole[found.end() :]
    return whole


def _refusal(text: str, reason: str) -> UsageError:
    return UsageError(
        f"{shown(text)} is no layout of a pipeline: {reason}. {Word('layers_per_chunk')} takes numbers (1,2,2,0), or "
        "a text such as Et|(tt|)*30mL"
    )


DTYPE_WORDS = tuple(FORMAT_WORDS)
OPTION_WORDS: Mapping[str, type] = {name: word.kind for name, word in GRAPH_WORDS.items()}
WORDS: Mapping[str, type] = {name: word.kind for name, word in PLAN_WORDS.items()}
"""Every word of a plan with the type of its value: `tuple` is a list of integers, `list` a list of names."""

_NUMBERS = re.compile(r"[-+\d.,\s]+")
"""A text that is no file's name although its ending looks like one: `1.5,1`."""

_SHARE = re.compile(r"-?(\d{1,18}(\.\d{0,18})?|\.\d{1,18})", re.ASCII)

_KINDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a word",
    tuple: "a list of whole numbers",
    list: "a list of names",
}


def typed_words(words: Mapping[str, object]) -> dict[str, Any]:
    """The words with `-` read as `_`, after a check of their types. Words without a value (None) are left out."""
    typed: dict[str, Any] = {}
    for given, value in words.items():
        word = str(given).replace("-", "_")
        if word not in WORDS:
            raise UsageError(f"unknown word {shown(given)} in the plan{_near(word)}")
        if word in typed:
            raise UsageError(f"the plan has the word {shown(word)} twice")
        if value is not None:
            typed[word] = _typed(word, WORDS[word], value)
    return typed


def read_plan_file(path: Path, given: Mapping[str, object] | None = None) -> dict[str, Any]:
    """The checked words of a file, for `Plan.from_mapping`: YAML, JSON or TOML by its suffix, or an engine's arguments.

    path: of an engine's arguments with the engine before it, `vllm:args.txt`. given: words that win over those of the
    file; an engine's file needs the workflow among them.
    """
    from stagedb.files import read_document
    from stagedb.frameworks.engines import engine_file, plan_words, read_settings

    named = engine_file(path)
    if named is not None:
        return typed_words(plan_words(read_settings(*named), given or {}))
    words = read_document(path, "plan", (".yaml", ".yml", ".json", ".toml"), option=str(Word("plan")))
    if words is None:
        return {}
    if not isinstance(words, dict):
        raise UsageError(f"the plan {path} is not a mapping of words to values (`word: value`)")
    try:
        return typed_words(words)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def _near(word: str) -> str:
    return did_you_mean(word, WORDS, ": {}", most=3) or f"; the words are {', '.join(WORDS)}"


def _typed(word: str, kind: type, value: object) -> object:
    if PLAN_WORDS[word].about.file and isinstance(value, str) and Path(value).suffix and not _NUMBERS.fullmatch(value):
        return value
    if PLAN_WORDS[word].about.numbers and isinstance(value, (list, tuple)) and all(type(each) is int for each in value):
        return ",".join(map(str, value))
    if PLAN_WORDS[word].about.layout and isinstance(value, str) and is_layout(value):
        return parse_layout_text(value)
    if PLAN_WORDS[word].about.rows and isinstance(value, list | tuple):
        value = joined_rows(value)
    if PLAN_WORDS[word].about.shares:
        return _shares(word, value.split(",") if isinstance(value, str) else value)
    if kind in (tuple, list) and isinstance(value, str):
        value = [part.strip() for part in value.split(",")]
        if kind is tuple:
            value = [int(part) if part.removeprefix("-").isdecimal() else part for part in value]
    if kind is tuple and isinstance(value, list | tuple) and all(_is_int(item) for item in value):
        return tuple(value)
    if kind is list and isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if kind is int and _is_int(value):
        return value
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    wrong = next((item for item in value if not _is_int(item)), None) if isinstance(value, list | tuple) else None
    which = f": {shown(wrong)} is not a whole number" if kind is tuple and wrong is not None else ""
    raise UsageError(f"{word} must be {_KINDS[kind]}, not {shown(value)}{which} ({Word(word)})")


def joined_rows(rows: Sequence[object]) -> list[object]:
    """Each row of whole numbers as a text, `3 1`; others as they are."""
    return [
        " ".join(map(str, row)) if isinstance(row, list | tuple) and all(map(_is_int, row)) else row for row in rows
    ]


def _shares(word: str, value: object) -> tuple[int | Fraction, ...]:
    if not isinstance(value, list | tuple):
        raise UsageError(f"{word} must be a list of numbers, not {shown(value)} ({Word(word)})")
    found: list[int | Fraction] = []
    for each in value:
        number = share(each)
        if number is None:
            raise UsageError(
                f"{word} must be a list of whole numbers or of shares, not {shown(value)}: {shown(each)} is neither "
                f"({Word(word)})"
            )
        found.append(number)
    return tuple(found)


def share(value: object) -> int | Fraction | None:
    """A number exactly as it was written: whole, or a fraction for one with decimals. None for other values.

    value: a number, or a text of one.
    """
    if isinstance(value, int | Fraction):
        return None if isinstance(value, bool) else value
    if isinstance(value, float):
        return Fraction(repr(value)) if math.isfinite(value) else None  # the decimals that were written
    if not isinstance(value, str) or not _SHARE.fullmatch(value.strip()):
        return None
    return Fraction(value.strip()) if "." in value else int(value)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
