"""Where systems come from: presets that ship with stagedb, and files of the user. See docs/systems.md."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from stagedb.errors import UsageError
from stagedb.files import compose, did_you_mean, is_there, path_text, read_text, shown, write_whole
from stagedb.mentions import Word, call
from stagedb.systems.algorithms import HARDWARE
from stagedb.systems.system import (
    CASTS,
    COLLECTIVE_MODELS,
    COMPUTE_MODES,
    COPIES,
    DTYPES,
    FLAT,
    FP8_SCALES,
    KINDS,
    MERGES,
    MOST_BYTES,
    STREAMS,
    SUMS,
    Accelerator,
    Collectives,
    Curve,
    CustomAllReduce,
    DecodeAttention,
    Dimension,
    Host,
    Number,
    Overlap,
    PowerLimit,
    System,
    TableFile,
)
from stagedb.systems.tables.measured_table import SHAPES, WIDTHS
from stagedb.systems.tables.table_files import ENDINGS, digest_of, shipped

# YAML (or JSON) read strictly: every value has its file, line and key, so that an error can name them.

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,25}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][+-]?[0-9]{1,2})?")
_INFINITE = (".inf", ".Inf", ".INF")
_LONGEST_TEXT = 2000


@dataclass(frozen=True)
class Value:
    """A node of a document, with its place: file, key, and the line of its key."""

    node: yaml.Node
    where: str
    key: str
    line: int

    def wrong(self, takes: str) -> UsageError:
        """The error for a value that is not allowed. It names the value, its place, and `takes`, what is allowed."""
        return UsageError(f"{self._place}: {self.key or 'it'} is {self._description}: it takes {takes}")

    def refused(self, why: str) -> UsageError:
        """The error for a value that is refused for another reason than its type.

        why: the reason, in words.
        """
        return UsageError(f"{self._place}: {why}")

    @property
    def is_null(self) -> bool:
        """Whether the value is open: `null`, `~`, or empty."""
        return self.node.tag == "tag:yaml.org,2002:null"

    def mapping(self, required: Iterable[str], optional: Iterable[str] = ()) -> "dict[str, Value]":
        """The values by key: all the required keys, and no others than these and the optional ones."""
        needed = tuple(required)
        known = (*needed, *optional)
        found = self.free_mapping(f"a mapping with {', '.join(known)}")
        for name, value in found.items():
            if name not in known:
                hint = did_you_mean(name, known)
                raise value.refused(f"unknown key {value.key}{hint}; allowed here: {', '.join(known)}")
        missing = [name for name in needed if name not in found]
        if missing:
            raise self.refused(f"{self.key or 'the system'} has no {', '.join(missing)}")
        return found

    def free_mapping(self, takes: str) -> "dict[str, Value]":
        """The values of a mapping by key. The keys are free: short printable texts, each once.

        takes: what the error names as allowed.
        """
        if not isinstance(self.node, yaml.MappingNode):
            raise self.wrong(takes)
        found: dict[str, Value] = {}
        for key, node in self.node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise Value(key, self.where, self.key, _line(key)).wrong("texts as keys")
            name = str(key.value)
            if len(name) > 60 or not name.isprintable():
                raise Value(key, self.where, self.key, _line(key)).wrong(takes)
            value = Value(node, self.where, f"{self.key}.{name}" if self.key else name, _line(key))
            if name in found:
                raise value.refused(f"{value.key} appears twice")
            found[name] = value
        return found

    def items(self, takes: str) -> "list[Value]":
        """The values of a list with at least one value. takes: what the error names as allowed."""
        if not isinstance(self.node, yaml.SequenceNode) or not self.node.value:
            raise self.wrong(takes)
        return [Value(node, self.where, f"{self.key}[{at}]", _line(node)) for at, node in enumerate(self.node.value)]

    def text(self, takes: str, right: Callable[[str], bool] = bool) -> str:
        """A printable text. takes: what the error names as allowed. right: whether a text is allowed."""
        value = self._scalar
        is_text = self.node.tag == "tag:yaml.org,2002:str"
        if value is None or not is_text or not 0 < len(value) <= _LONGEST_TEXT or not value.isprintable():
            raise self.wrong(takes)
        if not right(value):
            raise self.wrong(takes)
        return value

    def choice(self, words: Sequence[str]) -> str:
        """One of the given words; a UsageError names these."""
        return self.text(f"one of {', '.join(words)}", lambda text: text in words)

    def number(self, takes: str, right: Callable[[Number], bool], *, infinite: bool = False) -> Number:
        """A number exactly as it is written.

        takes: what the error names as allowed. right: whether a number is allowed. infinite: `.inf` is allowed.
        """
        text = self._scalar or ""
        if infinite and text in _INFINITE:
            return math.inf
        # A quoted number is a text.
        value = None if getattr(self.node, "style", None) else exact(text)
        if value is None or not right(value):
            raise self.wrong(takes)
        if Fraction(repr(float(value))) != value:
            raise self.refused(f"{self.key} is {text}: at most 15 digits are kept, and it has more")
        return value

    def integer(self, takes: str, least: int, most: int = 1 << 40) -> int:
        """A whole number from `least` to `most`. takes: what the error names as allowed."""
        return int(self.number(takes, lambda value: value == int(value) and least <= value <= most))

    @property
    def _scalar(self) -> str | None:
        return str(self.node.value) if isinstance(self.node, yaml.ScalarNode) else None

    @property
    def _place(self) -> str:
        return f"{self.where}, line {self.line}"

    @property
    def _description(self) -> str:
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list" if self.node.value else "an empty list"
        text = str(self.node.value)
        return "nothing" if self.is_null else ascii(text[:60])


def exact(text: str) -> Fraction | None:
    """The number that a text writes, with bounded length and size; None for other texts."""
    return Fraction(text) if _NUMBER.fullmatch(text) else None


def read_value(text: str, where: str) -> Value:
    """The document of a text.

    where: the file's name, for errors. UsageError, which names file and line, if it is not YAML, or is empty.
    """
    node = compose(text, where)
    if node is None:
        raise UsageError(f"{where} is empty")
    return Value(node, where, "", _line(node))


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


DEFAULT = "h100"
"""The preset that is used if none is named."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ENDINGS = (".yaml", ".yml", ".json")
_MOST_DIMENSIONS = 8
_MOST_PARTS = 64


@lru_cache(maxsize=1)
def system_names() -> tuple[str, ...]:
    """The names of the presets in alphabetical order."""
    found = (entry.name for entry in _presets().iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in found if name.endswith(".yaml")))


def load_system(word: str | Path) -> System:
    """The system with a preset's name, or in a file (YAML or JSON). word: the name, or the path of the file.

    UsageError for an unknown name (with similar ones) and for a file that cannot be read. For content that does not
    describe a system it names file, line and key.
    """
    if isinstance(word, str) and word in system_names():
        return _preset(word)
    path = Path(word)
    if isinstance(word, str) and path.name == word and path.suffix not in _ENDINGS and not is_there(path):
        hint = did_you_mean(word.lower(), system_names(), most=3, cutoff=0.4)
        raise UsageError(
            f"unknown system {shown(word)}{hint}: {Word('system')} takes a preset ({call('systems')} lists them) or "
            "the path of a system's file"
        )
    return parse_system(read_text(path, "system", option=str(Word("system"))), path_text(path), path.parent)


def parse_system(text: str, where: str = "the system", folder: Path | None = None) -> System:
    """The system that a text describes. UsageError, which names `where`, line and key, if it describes none.

    folder: where its tables are, if they have no absolute paths. The tables themselves are read when they are used.
    """
    fields = read_value(text, where).mapping(
        ("name", "sources", "accelerator", "network"), ("host", "overlap", "collectives", "tables")
    )
    return System(
        name=_name(fields["name"]),
        sources=tuple(
            each.text("a text that names a source")
            for each in fields["sources"].items("a list of texts that name the sources of the numbers")
        ),
        accelerator=_accelerator(fields["accelerator"]),
        dimensions=_dimensions(fields["network"]),
        overlap=_overlap(fields["overlap"]) if "overlap" in fields else Overlap(),
        collectives=_collectives(fields["collectives"]) if "collectives" in fields else Collectives(),
        tables=_tables(fields["tables"], folder) if "tables" in fields else (),
        host=_host(fields["host"]) if "host" in fields else None,
    )


def write_system(path: Path, content: Mapping[str, Any]) -> None:
    """Write the file of a system. content: its fields, as `System.to_dict` has them. StagedbError if that fails."""
    write_whole(path, yaml.safe_dump(content, sort_keys=False, width=120).encode(), str(Word("out")))


@lru_cache(maxsize=32)
def _preset(name: str) -> System:
    entry = _presets() / f"{name}.yaml"
    return parse_system(entry.read_text(encoding="utf-8"), entry.name)


def _presets() -> Path:
    return Path(str(files("stagedb.systems"))) / "presets"


def _name(value: Value) -> str:
    return value.text("letters, digits, '.', '_' and '-'", lambda text: _NAME.fullmatch(text) is not None)


def _rate(value: Value, unit: str) -> Number:
    takes = f"a number of {unit} above 0, or .inf"
    return value.number(takes, lambda number: 0 < number <= 10**9, infinite=True)


def _exact(value: Value, takes: str, most: int) -> Fraction:
    return Fraction(value.number(takes, lambda number: 0 <= number <= most))


def _accelerator(value: Value) -> Accelerator:
    fields = value.mapping(
        ("name", "peak", "memory", "launch"),
        ("graph_launch", "efficiency", "sustained", "power", "decode_attention", "issue", "fp8_scales"),
    )
    peak = fields["peak"].mapping((), DTYPES)
    if not peak:
        raise fields["peak"].wrong(f"TFLOP/s by dtype ({', '.join(DTYPES)}), at least one")
    memory = fields["memory"].mapping(("bandwidth", "capacity"), ("reserve",))
    capacity = _rate(memory["capacity"], "GB")
    curves = fields["efficiency"].mapping((), ("matmul", "attention", "memory")) if "efficiency" in fields else {}
    return Accelerator(
        name=fields["name"].text("a text"),
        # Sorted, so that two files with the same content make the same system.
        peak={dtype: _rate(peak[dtype], "TFLOP/s") for dtype in DTYPES if dtype in peak},
        bandwidth=_rate(memory["bandwidth"], "GB/s"),
        capacity=capacity,
        launch=_exact(fields["launch"], "a number of ns, 0 or more", 10**9),
        graph_launch=(
            _exact(fields["graph_launch"], "a number of ns, 0 or more", 10**9) if "graph_launch" in fields else None
        ),
        matmul=_curve(curves, "matmul"),
        attention=_curve(curves, "attention"),
        memory=_curve(curves, "memory"),
        sustained=_share(fields["sustained"]) if "sustained" in fields else Fraction(1),
        power=_power(fields["power"]) if "power" in fields else None,
        reserve=_reserve(memory["reserve"], capacity) if "reserve" in memory else (),
        decode_attention=_decode_attention(fields["decode_attention"]) if "decode_attention" in fields else None,
        issue=_exact(fields["issue"], "a number of ns, 0 or more", 10**9) if "issue" in fields else None,
        fp8_scales=fields["fp8_scales"].choice(FP8_SCALES) if "fp8_scales" in fields else FP8_SCALES[0],
    )


def _decode_attention(value: Value) -> DecodeAttention:
    fields = value.mapping(("start", "read_share", "compute_share"))
    start = _exact(fields["start"], "a number of ns, 0 or more", 10**9)
    return DecodeAttention(start, _share(fields["read_share"]), _share(fields["compute_share"]))


def _host(value: Value) -> Host:
    fields = value.mapping(("link", "latency", "bandwidth"), ("efficiency",))
    return Host(
        link=_rate(fields["link"], "GB/s"),
        latency=_exact(fields["latency"], "a number of ns, 0 or more", 10**9),
        bandwidth=_rate(fields["bandwidth"], "GB/s"),
        efficiency=_curve(fields, "efficiency"),
    )


def _reserve(value: Value, capacity: Number) -> tuple[tuple[str, Fraction], ...]:
    takes = "GB that are not for tensors, by what holds them, such as {context: 1.6, nccl: 0.4}"
    found = value.free_mapping(takes)
    for name, each in found.items():
        if _NAME.fullmatch(name) is None:
            raise each.refused(f"{each.key}: a name in {value.key} has letters, digits, '.', '_' and '-'")
    # Sorted, so that two files with the same content make the same system.
    sizes = tuple((name, _exact(found[name], "a number of GB, 0 or more", 10**9)) for name in sorted(found))
    whole = sum((size for _, size in sizes), Fraction(0))
    if whole >= capacity:
        raise value.refused(f"{value.key} has {float(whole):g} GB in all: it takes less than the capacity")
    return sizes


def _power(value: Value) -> PowerLimit:
    fields = value.mapping(("limit", "measured"))
    limit, measured = (_exact(fields[name], "a number of W above 0", 10**9) for name in ("limit", "measured"))
    if not limit or not measured:
        raise value.wrong("limit and measured, numbers of W above 0")
    return PowerLimit(limit, measured)


def _share(value: Value) -> Fraction:
    return Fraction(value.number("a share above 0 and at most 1", lambda number: 0 < number <= 1))


def _tables(value: Value, folder: Path | None) -> tuple[TableFile, ...]:
    found: dict[tuple[str, str], TableFile] = {}
    for each in value.items("a list of tables"):
        fields = each.mapping(("operator", "dtype", "file"), ("source", "digest", "cast"))
        table = TableFile(
            operator=fields["operator"].text(f"one of {', '.join(SHAPES)}", lambda text: text in SHAPES),
            dtype=fields["dtype"].text(f"one of {', '.join(WIDTHS)}", lambda text: text in WIDTHS),
            file=_table_file(fields["file"], folder),
            digest=fields["digest"].text("16 hexadecimal digits", _is_digest) if "digest" in fields else "",
            source=fields["source"].text("a text that names a source") if "source" in fields else "",
            cast=fields["cast"].integer("bytes for each element of the first operand", 0, 64)
            if "cast" in fields
            else 0,
        )
        if found.setdefault((table.operator, table.dtype), table) is not table:
            raise each.refused(f"{each.key} is the second table of {table.operator} in {table.dtype}: keep one")
    return tuple(each if each.digest else replace(each, digest=digest_of(each.file)) for each in found.values())


def _table_file(value: Value, folder: Path | None) -> str:
    takes = f"the name of a table that stagedb carries, or the path of a {', '.join(ENDINGS)} file"
    text = value.text(takes, lambda text: bool(text) and "\0" not in text)
    if Path(text).suffix not in ENDINGS:
        if _NAME.fullmatch(text) is None or not shipped(text).is_file():
            raise value.wrong(takes)
        return text
    return text if folder is None or Path(text).is_absolute() else str((folder / text).resolve())


def _is_digest(text: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{16}", text) is not None


def _curve(curves: Mapping[str, Value], name: str) -> Curve:
    if name not in curves:
        return FLAT
    value = curves[name]
    takes = "a list of points [size, efficiency], such as [[1e6, 0.3], [1e9, 0.8]]"
    points = []
    for each in value.items(takes):
        pair = each.items("a point [size, efficiency]")
        if len(pair) != 2:
            raise each.refused(f"{each.key} has {len(pair)} numbers: a point is [size, efficiency]")
        size = pair[0].number("a size above 0", lambda number: number > 0)
        share = pair[1].number("an efficiency above 0 and at most 1", lambda number: 0 < number <= 1)
        points.append((Fraction(size), Fraction(share)))
    try:
        return Curve(tuple(points))
    except UsageError as error:
        raise value.refused(f"{value.key}: {error}") from None


def _dimensions(value: Value) -> tuple[Dimension, ...]:
    items = value.items("a list of network dimensions, innermost first")
    if len(items) > _MOST_DIMENSIONS:
        raise value.refused(f"{value.key} has {len(items)} dimensions: it takes at most {_MOST_DIMENSIONS}")
    found = [_dimension(each, outermost=each is items[-1]) for each in items]
    names = [each.name for each in found]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise items[at].refused(f"{items[at].key}.name is {shown(name)}, and another dimension has that name")
    return tuple(found)


def _dimension(value: Value, *, outermost: bool) -> Dimension:
    fields = value.mapping(
        ("name", "kind", "bandwidth", "latency", *(() if outermost else ("size",))),
        ("efficiency", "algorithms", "use", "custom_all_reduce", *(("size",) if outermost else ())),
    )
    size = fields.get("size")
    if size is None or (outermost and size.is_null):
        places = None
    else:
        open_ = ", or null for as many as the job needs" if outermost else " (the outermost dimension's may be open)"
        places = size.integer(f"a whole number of accelerators, at least 1{open_}", 1, 1 << 27)
    kind = fields["kind"].choice(KINDS)
    use = None
    if "use" in fields:
        if places is None or kind != "switch":
            raise fields["use"].refused(f"{fields['use'].key} is for a switch with a size: leave it out here")
        use = fields["use"].integer(f"accelerators of these that a job takes, 1 to {places}", 1, places)
    return Dimension(
        name=_name(fields["name"]),
        size=places,
        kind=kind,
        bandwidth=_rate(fields["bandwidth"], "GB/s"),
        latency=_exact(fields["latency"], "a number of ns, 0 or more", 10**9),
        efficiency=_curve(fields, "efficiency"),
        algorithms=_algorithms(fields["algorithms"]) if "algorithms" in fields else (),
        use=use,
        custom_all_reduce=(
            _custom_all_reduce(fields["custom_all_reduce"], kind) if "custom_all_reduce" in fields else None
        ),
    )


def _custom_all_reduce(value: Value, kind: str) -> CustomAllReduce:
    if kind == "ring":
        raise value.refused(f"{value.key} is for ranks that all read each other's memory: leave it out of a ring")
    fields = value.mapping(("one_shot", "two_shot", "share", "limit", "ranks"))
    takes = "a list of sizes of groups that have such kernels, such as [2, 4, 8]"
    ranks = {each.integer("ranks of a group, 2 or more", 2, 1 << 27) for each in fields["ranks"].items(takes)}
    return CustomAllReduce(
        one_shot=_exact(fields["one_shot"], "a number of ns, 0 or more", 10**9),
        two_shot=_exact(fields["two_shot"], "a number of ns, 0 or more", 10**9),
        share=_share(fields["share"]),
        limit=fields["limit"].integer("bytes that a message has less than, 0 for none", 0, MOST_BYTES),
        # Sorted, so that two files with the same content make the same system.
        ranks=tuple(sorted(ranks)),
    )


def _algorithms(value: Value) -> tuple[str, ...]:
    named = {each.choice(HARDWARE) for each in value.items(f"a list of one or more of {', '.join(HARDWARE)}")}
    # Sorted, so that two files with the same content make the same system.
    return tuple(name for name in HARDWARE if name in named)


_OF_FRAMEWORKS = (
    "framework",
    "chunked",
    "reduced",
    "gathered",
    "casts",
    "sums",
    "stretch",
    "taken",
    "copies",
    "merges",
    "keys",
    "issue_share",
    "issued",
)
STRETCHED = ("matmul", "matmul-fp8", "attention")
"""Operators that take longer in a step than alone."""

ISSUED = ("bf16", "fp8")
"""Formats of matmuls whose issue takes a host different times. Others take it as long as bf16."""


def _overlap(value: Value) -> Overlap:
    fields = value.mapping((), ("compute", "streams", *_OF_FRAMEWORKS))
    compute, streams, chunked = fields.get("compute"), fields.get("streams"), fields.get("chunked")
    buckets = {
        name: fields[name].integer("bytes of a bucket, 0 for none", 0, 1 << 40)
        for name in ("reduced", "gathered")
        if name in fields
    }
    named = () if chunked is None else tuple(_name(each) for each in chunked.items("a list of mesh axes, such as [tp]"))
    stretch = fields["stretch"].mapping((), STRETCHED) if "stretch" in fields else {}
    factor = "how many times its measured time a kernel takes, from 0.1 to 10"
    of_layer = "a share of the host's time for a matmul of a linear layer, from 0 to 10"
    return Overlap(
        compute.choice(COMPUTE_MODES) if compute is not None else Overlap().compute,
        streams.choice(STREAMS) if streams is not None else Overlap().streams,
        _name(fields["framework"]) if "framework" in fields else "",
        tuple(sorted(set(named))),
        **buckets,
        casts=fields["casts"].choice(CASTS) if "casts" in fields else "",
        sums=fields["sums"].choice(SUMS) if "sums" in fields else "",
        stretch=tuple(
            (operator, Fraction(stretch[operator].number(factor, lambda number: Fraction(1, 10) <= number <= 10)))
            for operator in STRETCHED
            if operator in stretch
        ),
        taken=fields["taken"].integer("thousandths of computing, 0 to 999", 0, 999) if "taken" in fields else 0,
        copies=fields["copies"].choice(COPIES) if "copies" in fields else "",
        merges=fields["merges"].choice(MERGES) if "merges" in fields else "",
        keys=fields["keys"].choice(("repeated",)) if "keys" in fields else "",
        issue_share=Fraction(fields["issue_share"].number(of_layer, lambda share: 0 <= share <= 10))
        if "issue_share" in fields
        else Fraction(0),
        issued=_issued(fields["issued"]) if "issued" in fields else (),
    )


def _issued(value: Value) -> tuple[tuple[str, int], ...]:
    """ns in which a host issues a matmul of one expert, by format."""
    given = value.mapping((), ISSUED)
    takes = "ns in which the host issues a matmul of one expert, 0 to 1000000000"
    return tuple((dtype, given[dtype].integer(takes, 0, 10**9)) for dtype in ISSUED if dtype in given)


def _collectives(value: Value) -> Collectives:
    fields = value.mapping((), ("model", "parts"))
    model, parts = fields.get("model"), fields.get("parts")
    takes = f"a whole number of parts from 1 to {_MOST_PARTS}"
    return Collectives(
        model.choice(COLLECTIVE_MODELS) if model is not None else Collectives().model,
        parts.integer(takes, 1, _MOST_PARTS) if parts is not None else Collectives().parts,
    )
