"""Own blocks from files and cards: bounded, plain data, refused with file and line.

axes: {ffn: ffn, rank: 64}
parameters:
  down: {axes: "rank, hidden"}
  up: {axes: "ffn, rank", tp: ffn}
  back: {axes: "hidden, ffn", tp: ffn}
steps:
  - low: {einsum: "batch seq hidden, rank hidden -> batch seq rank", of: [input, down]}
  - high: {einsum: "batch seq rank, ffn rank -> batch seq ffn", of: [low, up]}
  - active: {silu: high}
  - output: {einsum: "batch seq ffn, hidden ffn -> batch seq hidden", of: [active, back]}
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from stagedb.errors import UsageError
from stagedb.files import compose, did_you_mean, parse_document, path_text, read_text, shown
from stagedb.models.kinds.own.block import INPUT, OUTPUT, STREAM, WORDS, BlockParameter, BlockStep, OwnBlock
from stagedb.models.kinds.own.shapes import MOST_AXES, shapes_of
from stagedb.models.kinds.part import FAR

LARGEST = 1 << 16
"""Bytes of a block's file, at most."""

MOST = {"axes": 16, "parameters": 64, "steps": 64}
"""Entries of each part of a block, at most."""

MOST_OPERANDS, MOST_BLOCKS, LONGEST, LONGEST_AXIS = 8, 16, 200, 1 << 31

FUNCTIONS = ("silu", "gelu", "relu", "relu2", "gelu_tanh", "quick_gelu", "sigmoid")
GATES = (*FUNCTIONS, "clamped_swiglu")


@dataclass(frozen=True)
class OperatorForm:
    """What an operator takes. least, most: the number of operands. argument: what its word has as its value, apart from
    operands; empty: it has operands alone."""

    about: str
    least: int = 1
    most: int = 1
    argument: str = ""


OPERATORS: Mapping[str, OperatorForm] = {
    "einsum": OperatorForm(
        "the product of two operands, summed over the axes that the result does not have", 2, 2, "text"
    ),
    "add": OperatorForm("the sum; a parameter with the last axes alone is repeated", 2, MOST_OPERANDS),
    "multiply": OperatorForm(
        "the product by element; a parameter with the last axes alone, or a value without the last one, is repeated",
        2,
        2,
    ),
    "gate": OperatorForm(
        "a function of the first operand times the second one, or of one operand's last axis of 2", 1, 2, "function"
    ),
    "scale": OperatorForm("a number times the operand", argument="number"),
    "softcap": OperatorForm("the bound of values, by a tanh", argument="number"),
    "norm": OperatorForm("the card's norm over the last axis, with its weight"),
    "unit_norm": OperatorForm("an RMSNorm over the last axis without a weight"),
    "softmax": OperatorForm("the softmax over the last axis"),
    "causal_softmax": OperatorForm("the softmax over the keys that a query may see"),
    **{name: OperatorForm(f"the function {name} of each value") for name in FUNCTIONS},
}
"""What a step may be, by its word."""

_NAME = re.compile(r"[a-z](?:_?[a-z0-9]){0,23}")
_FORBIDDEN = (*STREAM, INPUT, OUTPUT)

Path_ = tuple[str | int, ...]


@dataclass(frozen=True)
class BlockSource:
    """A block's content with its places. where: the text that errors begin with. lines: the line of each entry."""

    where: str
    lines: Mapping[Path_, int] = field(default_factory=dict)

    def refused(self, at: Path_, text: str) -> UsageError:
        """The error for an entry. at: the keys that lead to it. text: what is wrong."""
        line = self.line(at)
        return UsageError(f"{self.where}{f', line {line}' if line else ''}: {text}")

    def line(self, at: Path_) -> int:
        """The line of an entry, or of the nearest one around it; 0 without lines. at: the keys that lead to it."""
        while at and at not in self.lines:
            at = at[:-1]
        return self.lines.get(at, 0)


def read_blocks(content: object, folder: Path | None, where: str) -> tuple[OwnBlock, ...]:
    """The blocks that a card names, by name.

    content: by name `{file: mine.yaml, sizes: {...}}`, or the content of such a file; or blocks as they are. folder:
    the card's directory, in which files are; None: the card is no file. UsageError, with the file and the line. where:
    the card, for errors.
    """
    if isinstance(content, tuple) and all(isinstance(each, OwnBlock) for each in content):
        return content
    if not isinstance(content, Mapping) or not content:
        raise UsageError(f"{where}: blocks takes blocks by name, such as {{mine: {{file: mine.yaml}}}}")
    if len(content) > MOST_BLOCKS:
        raise UsageError(f"{where}: {len(content)} blocks: at most {MOST_BLOCKS}")
    return tuple(_entry(str(name), each, folder, where) for name, each in content.items())


def _entry(name: str, content: object, folder: Path | None, where: str) -> OwnBlock:
    at = f"{where}: blocks: {shown(name)}"
    if not isinstance(content, Mapping):
        raise UsageError(f"{at} takes `file` and `sizes`, or axes, parameters and steps")
    if "file" not in content:
        return read_block(name, content, BlockSource(f"{where}: blocks: {name}"))
    unknown = [str(key) for key in content if key not in ("file", "sizes")]
    if unknown:
        raise UsageError(f"{at}: unknown key {shown(unknown[0])}: with `file` it takes `sizes`")
    if folder is None:
        raise UsageError(f"{at}: a file is read for a card that is a file: give axes, parameters and steps here")
    path = Path(content["file"]) if isinstance(content["file"], str) and content["file"].isprintable() else None
    if path is None or path.is_absolute() or ".." in path.parts or path.suffix not in (".yaml", ".yml"):
        raise UsageError(
            f"{at}: file takes the name of a .yaml file in the card's directory or below it, not "
            f"{shown(content['file'])}: put the block there"
        )
    return read_file(name, folder / path, content.get("sizes", {}), at)


def read_file(name: str, path: Path, sizes: object, card: str) -> OwnBlock:
    """The block of a file, with the sizes that a card gives its axes. card: the place in the card, for errors.

    name: the block's. path: of the file. sizes: by axis.
    """
    where = f"the block {path_text(path)}"
    text = read_text(path, "block", LARGEST)
    node = compose(text, where)
    content = parse_document(text, "YAML", where)
    source = BlockSource(where, {} if node is None else dict(_lines(node, ())))
    if not isinstance(content, Mapping):
        raise source.refused((), "a block has axes, parameters and steps")
    return read_block(name, _with_sizes(content, sizes, card), source)


def _lines(node: yaml.Node, at: Path_) -> "list[tuple[Path_, int]]":
    """The line of each entry of a document, to a depth of four."""
    found = [(at, node.start_mark.line + 1)]
    if len(at) == 4:
        return found
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*at, str(key.value))
            found += _lines(value, below)
            found.append((below, key.start_mark.line + 1))
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            found += _lines(value, (*at, number))
    return found


def _with_sizes(content: Mapping[str, Any], sizes: object, card: str) -> Mapping[str, Any]:
    """The content of a file with a card's sizes."""
    axes = content.get("axes")
    if not isinstance(sizes, Mapping):
        raise UsageError(f"{card}: sizes takes sizes by axis, such as {{rank: 64}}, not {shown(sizes)}")
    known = list(axes) if isinstance(axes, Mapping) else []
    for axis in sizes:
        if axis not in known:
            raise UsageError(f"{card}: sizes: the file has no axis {shown(axis)}; it has {', '.join(known) or 'none'}")
        if isinstance(axes, Mapping) and axes[axis] == "seq":
            raise UsageError(f"{card}: sizes: {axis} is the sequence, whose length is the plan's: leave it out")
    return {**content, "axes": {**axes, **sizes}} if isinstance(axes, Mapping) else content


def read_block(name: str, content: Mapping[str, Any], source: BlockSource) -> OwnBlock:
    """A block from its content, checked. name: the block's. UsageError with its place for what is no block."""
    if not _NAME.fullmatch(name) or name.startswith(("attn", "ffn", "further")) or name in _FORBIDDEN:
        raise source.refused(
            (),
            f"{shown(name)} is no name of a block: it takes up to 24 small letters, digits and single '_', from a "
            "letter on, and does not begin with attn, ffn or further",
        )
    unknown = [str(key) for key in content if key not in MOST]
    if unknown:
        hint = did_you_mean(unknown[0], MOST)
        raise source.refused((unknown[0],), f"unknown key {shown(unknown[0])}{hint}: a block has {', '.join(MOST)}")
    for part, most in MOST.items():
        value = content.get(part)
        if isinstance(value, Mapping | list) and len(value) > most:
            raise source.refused((part,), f"{len(value)} {part}: at most {most}")
    axes = _read_axes(content.get("axes") or {}, source)
    block = OwnBlock(
        name,
        axes,
        _read_parameters(content.get("parameters") or {}, dict(axes), source),
        _read_steps(content.get("steps"), source),
        source.where,
    )
    shapes_of(block)
    return block


def _named(name: object, at: Path_, what: str, source: BlockSource) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in STREAM:
        raise source.refused(
            at,
            f"{shown(name)} is no name of {what}: it takes small letters, digits and single '_', and not "
            f"{', '.join(STREAM)}",
        )
    return name


def _read_axes(content: object, source: BlockSource) -> tuple[tuple[str, int | str], ...]:
    if not isinstance(content, Mapping):
        raise source.refused(("axes",), "axes takes sizes by axis, such as {rank: 64}")
    for axis, size in content.items():
        at = ("axes", axis)
        _named(axis, at, "an axis", source)
        if size is None:
            raise source.refused(at, f"the axis {axis} has no size: give it a number here, or in the card's `sizes`")
        whole = type(size) is int and 1 <= size <= LONGEST_AXIS
        if not whole and (not isinstance(size, str) or size not in WORDS):
            raise source.refused(
                at, f"the size of {axis} is a whole number from 1 or one of {', '.join(WORDS)}, not {shown(size)}"
            )
    return tuple(content.items())


def _read_parameters(content: object, axes: Mapping[str, int | str], source: BlockSource) -> tuple[BlockParameter, ...]:
    if not isinstance(content, Mapping):
        raise source.refused(("parameters",), "parameters takes them by name, such as {up: {axes: 'ffn, hidden'}}")
    return tuple(_read_parameter(name, each, axes, source) for name, each in content.items())


def _read_parameter(name: str, content: object, axes: Mapping[str, int | str], source: BlockSource) -> BlockParameter:
    at = ("parameters", name)
    if _named(name, at, "a parameter", source) in (INPUT, OUTPUT):
        raise source.refused(at, f"{name} is what a block reads or makes: give the parameter another name")
    if not isinstance(content, Mapping) or not isinstance(content.get("axes"), str) or set(content) - {"axes", "tp"}:
        raise source.refused(
            at, f"the parameter {name} takes axes, and the one that tp cuts: {{axes: 'ffn, hidden', tp: ffn}}"
        )
    text, tp = content["axes"], content.get("tp", "")
    dimensions = tuple(tuple(part.split()) for part in text.split(",")) if len(text) <= LONGEST else ()
    labels = [axis for dimension in dimensions for axis in dimension]
    known = {**axes, "hidden": "hidden"}
    if not dimensions or not all(dimensions) or len(labels) > MOST_AXES:
        raise source.refused(
            at, f"the axes of {name} are from 1 to {MOST_AXES}, with a comma between dimensions, not {shown(text)}"
        )
    for axis in labels:
        if known.get(axis, "seq") == "seq":
            grows = axis in ("batch", "seq", *known)
            why = f"grows with {axis}, which the plan decides" if grows else f"has the unknown axis {shown(axis)}"
            takes = ", ".join(each for each, size in known.items() if size != "seq")
            raise source.refused(at, f"the parameter {name} {why}: it takes {takes}")
    if len(set(labels)) < len(labels):
        raise source.refused(at, f"the parameter {name} has an axis twice: rename one, as in axes: {{inner: hidden}}")
    if tp != "" and tp not in labels:
        raise source.refused(at, f"the parameter {name}: tp cuts one of its axes, {', '.join(labels)}, not {shown(tp)}")
    return BlockParameter(name, dimensions, tp, source.line(at))


def _read_steps(content: object, source: BlockSource) -> tuple[BlockStep, ...]:
    if not isinstance(content, list) or not content:
        raise source.refused(("steps",), "steps takes a list, such as - output: {silu: input}")
    return tuple(_read_step(number, each, source) for number, each in enumerate(content))


def _read_step(number: int, content: object, source: BlockSource) -> BlockStep:
    at: Path_ = ("steps", number)
    if not isinstance(content, Mapping) or len(content) != 1:
        raise source.refused(at, f"step {number + 1} takes a name with its operator, such as - active: {{silu: high}}")
    ((name, body),) = content.items()
    at = (*at, str(name))
    if _named(name, at, "a step", source) == INPUT:
        raise source.refused(at, f"{INPUT} is what the block reads: give the step another name")
    words = [word for word in body if word != "of"] if isinstance(body, Mapping) else []
    if not isinstance(body, Mapping) or len(words) != 1:
        raise source.refused(at, f"step {name} takes one operator: {', '.join(OPERATORS)}")
    word = str(words[0])
    if word not in OPERATORS:
        hint = did_you_mean(word, OPERATORS)
        raise source.refused(at, f"step {name}: unknown operator {shown(word)}{hint}; there are {', '.join(OPERATORS)}")
    form = OPERATORS[word]
    argument = _argument(name, word, body[word], at, source) if form.argument else None
    operands = body.get("of") if form.argument else body[word]
    if not form.argument and "of" in body:
        raise source.refused(at, f"step {name}: {word} takes its operands alone: {{{word}: {shown(body[word])}}}")
    named = [operands] if isinstance(operands, str) else operands
    count = f"{form.least}" if form.least == form.most else f"{form.least} to {form.most}"
    if not isinstance(named, list) or not all(isinstance(each, str) for each in named):
        raise source.refused(at, f"step {name}: {word} takes {count} names under {'of' if form.argument else word}")
    if not form.least <= len(named) <= form.most:
        raise source.refused(at, f"step {name}: {word} takes {count} operands, not {len(named)}")
    return BlockStep(name, word, tuple(named), argument, source.line(at))


def _argument(name: str, word: str, value: object, at: Path_, source: BlockSource) -> str | float:
    form = OPERATORS[word]
    if form.argument == "number":
        least = 0 if word == "softcap" else -FAR
        if type(value) not in (int, float) or not least < float(str(value)) < FAR or value == 0:
            raise source.refused(at, f"step {name}: {word} takes a number other than 0, not {shown(value)}")
        return float(str(value))
    if form.argument == "function":
        if value not in GATES:
            raise source.refused(at, f"step {name}: gate takes one of {', '.join(GATES)}, not {shown(value)}")
        return str(value)
    if not isinstance(value, str) or len(value) > LONGEST:
        raise source.refused(at, f"step {name}: einsum takes a text of at most {LONGEST} characters")
    return " ".join(value.split())
