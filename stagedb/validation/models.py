"""Recorded models: what a model's own code has as parameters, and the matmuls of its forward and of a step of decoding.

The format is that of `tests/validation/models.json`: a list of records with `name`, `config` (a Hugging Face config),
`parameters`, `parameters_by_name` (elements, with layer and expert numbers as `*`), and `forward`, the matmuls of one
forward of `batch` sequences of `seq` tokens on one rank: `op`, `dims`, `count`. A record may have `decode`, those of a
step that adds a token to each of these sequences, and `kv_cache_bytes`, the cache of their tokens in 2-byte values.
Where parameters alone are compared a record needs `config` and `parameters`.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import read_document, shown
from stagedb.mentions import Word

LARGEST = 256 << 20
"""Bytes of a file of recorded models."""

Row = tuple[str, tuple[int, ...]]
"""A matmul: `mm`, `bmm` or `grouped`, and its dimensions."""

KINDS: tuple[tuple[str, str], ...] = (
    ("norm", r"norm|\bln_|\.ln_"),
    ("embedding", r"embed_tokens|tokens_embed|\bwte\b|word_embeddings|\bembeddings\.weight|embed_in\b|tok_embeddings"),
    ("positions", r"embed_positions|positions_embed|\bwpe\b|position_embeddings"),
    ("head", r"lm_head|embed_out|output_projection"),
    ("streams", r"\b(attn|ffn)_hc\b|hc_head"),
    ("shared experts", r"shared(?!_transformer)"),
    ("router", r"experts\.router\.layer"),
    ("attention", r"attention\.experts\.bias"),
    ("experts", r"experts|mlp\.(input|output)_linear"),
    ("router", r"\brouter\b|\.gate\.|\.wg\.|router\.layer|\bexpert_bias"),
    (
        "attention",
        r"attn|attention|mamba|temporal_block|\.conv\."
        r"|mixer\.([qkvo]_proj|(in|out|x|dt)_proj|conv1d|A_log|D$|dt_bias)",
    ),
    ("feed-forward", r"mlp|mixer|feed_forward|ffn|\.fc\d"),
)
"""Kinds of parameters, each with the words of its names in model code. The first that is found decides."""


@dataclass(frozen=True)
class RecordedModel:
    """A model as its own code has it.

    config: its Hugging Face config. parameters: elements of all parameters. kinds: elements by kind of parameter; empty
    if they were not recorded by name. forward: matmuls of a forward, each with its count. batch, seq: sequences, and
    tokens of each, in the forward. decode: matmuls of a step of decoding; empty if none was recorded. cache: bytes of
    the cache of all tokens; None: not recorded.
    """

    name: str
    config: Mapping[str, Any]
    parameters: int
    kinds: Mapping[str, int]
    forward: Mapping[Row, int]
    batch: int
    seq: int
    decode: Mapping[Row, int] = field(default_factory=dict)
    cache: int | None = None


def read_models(path: Path, parameters_alone: bool = False) -> list[RecordedModel]:
    """The records of a file. UsageError, with the place, for one that is not in the format.

    parameters_alone: what else a record has is left out, and need not be there.
    """
    content = read_document(path, "recorded models", (".json",), LARGEST, str(Word("models")), constants=True)
    if not isinstance(content, list):
        raise UsageError(f"{path}: recorded models are a list, not {shown(content)}")
    read = parameters_of if parameters_alone else record_of
    return [read(each, f"{path}: record {number}") for number, each in enumerate(content, start=1)]


def parameters_of(content: object, where: str) -> RecordedModel:
    """The parameters of the record in a mapping, by name if it has them so. where: its place, for errors.

    UsageError for a record without a config or parameters. content: the mapping.
    """
    content = _mapping(content, where)
    config, named = content.get("config"), content.get("parameters_by_name", {})
    if not isinstance(config, Mapping) or not isinstance(named, Mapping):
        raise UsageError(f"{where} lacks a mapping config or parameters_by_name")
    kinds: Counter[str] = Counter()
    for name, elements in named.items():
        kinds[kind_of(str(name))] += _count(elements, f"{where}: parameters of {shown(name)}", 0)
    name, parameters = content.get("name"), _count(content.get("parameters"), f"{where}: parameters")
    return RecordedModel(name if isinstance(name, str) else where, config, parameters, dict(kinds), {}, 1, 1)


def record_of(content: object, where: str) -> RecordedModel:
    """The record in a mapping. where: its place, for errors.

    content: the mapping. UsageError for one that is not in the format.
    """
    content = _mapping(content, where)
    if "parameters_by_name" not in content:
        raise UsageError(
            f"{where} lacks parameters_by_name: without them {Word('parameters_alone')} compares their sum"
        )
    made = parameters_of(content, where)
    forward, cache = _rows(content, "forward", where), content.get("kv_cache_bytes")
    return replace(
        made,
        forward=forward,
        batch=_count(content.get("batch"), f"{where}: batch"),
        seq=_count(content.get("seq"), f"{where}: seq"),
        decode=_rows(content, "decode", where) if "decode" in content else {},
        cache=None if cache is None else _count(cache, f"{where}: kv_cache_bytes"),
    )


def _mapping(content: object, where: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise UsageError(f"{where} must be a mapping, not {shown(content)}")
    return content


def kind_of(name: str) -> str:
    """The kind of a parameter, by its name in model code."""
    return next((kind for kind, words in KINDS if re.search(words, name)), "others")


def _rows(content: Mapping[str, Any], word: str, where: str) -> dict[Row, int]:
    """The matmuls under a word of a record, each with its count."""
    rows = content.get(word)
    if not isinstance(rows, list):
        raise UsageError(
            f"{where}: {word} must be a list of matmuls, not {shown(rows)}: without matmuls {Word('parameters_alone')} "
            "compares the rest"
        )
    found: Counter[Row] = Counter()
    for row in rows:
        found[_row(row, where)] += _count(row.get("count"), f"{where}: count")
    return dict(found)


def _row(row: object, where: str) -> Row:
    dims = row.get("dims") if isinstance(row, Mapping) else None
    if not isinstance(row, Mapping) or not isinstance(dims, list) or not isinstance(row.get("op"), str):
        raise UsageError(f"{where}: a matmul has op, dims and count, not {shown(row)}")
    flat = [each for part in dims for each in (part if isinstance(part, list) else [part])]
    return row["op"], tuple(_count(each, f"{where}: dims") for each in flat)


def _count(value: object, where: str, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise UsageError(f"{where} must be a whole number from {least}, not {shown(value)}")
    return value
