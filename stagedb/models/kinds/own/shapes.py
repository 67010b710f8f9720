"""The axes of every step of an own block, and the axis that tensor parallelism cuts in it.

A step that reads a parameter in parts follows that parameter. A step that reads none follows its operands. Any other
step runs on each rank's own tokens. The collective matcher moves tensors between the two.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stagedb.files import did_you_mean, nearest, shown
from stagedb.models.kinds.own.block import INPUT, OUTPUT, STREAM, BlockStep, OwnBlock

MOST_AXES = 6
"""Axes of one tensor, at most."""

MOST_LABELS = 8
"""Axes of one einsum, at most."""

OVER_LAST = ("norm", "unit_norm", "softmax", "causal_softmax")
"""Operators that read all values along the last axis."""


@dataclass(frozen=True)
class EinsumTerms:
    """The axes of both operands of an einsum, under the names that it uses, and of its result."""

    first: tuple[str, ...]
    second: tuple[str, ...]
    result: tuple[str, ...]


@dataclass(frozen=True)
class Shapes:
    """axes: those of each step's result. terms: those of each einsum. cuts: the axis that tp cuts in each step; empty:
    the step runs on each rank's own tokens. mixes: the steps that read several tokens of a sequence."""

    axes: Mapping[str, tuple[str, ...]]
    terms: Mapping[str, EinsumTerms]
    cuts: Mapping[str, str]
    mixes: tuple[BlockStep, ...]


def shapes_of(block: OwnBlock) -> Shapes:
    """The shapes of a block. UsageError, which names the file, the line and the step, for what has no meaning."""
    known: dict[str, tuple[str, ...]] = {INPUT: STREAM}
    terms: dict[str, EinsumTerms] = {}
    for step in block.steps:
        _check_names(block, step, known)
        known[step.name] = _result(block, step, known, terms)
        if len(known[step.name]) > MOST_AXES:
            raise block.refused(step.line, f"step {step.name} makes {len(known[step.name])} axes: at most {MOST_AXES}")
    _check_whole(block, known)
    cuts = {step.name: _cut(block, step, known, terms) for step in block.steps}
    mixes = tuple(step for step in block.steps if _mixes(block, step, terms))
    return Shapes({step.name: known[step.name] for step in block.steps}, terms, cuts, mixes)


def _check_names(block: OwnBlock, step: BlockStep, known: Mapping[str, tuple[str, ...]]) -> None:
    names = [*known, *(each.name for each in block.parameters)]
    if step.name in names:
        raise block.refused(step.line, f"the name {step.name} appears twice: give the step another one")
    for name in step.of:
        if name in names:
            continue
        later = any(each.name == name for each in block.steps)
        near = nearest(name, names)
        hint = " is made later: move its step up" if later else f" is unknown{f': {near[0]}?' if near else ''}"
        raise block.refused(step.line, f"step {step.name}: {shown(name)}{hint}; before it there are {', '.join(names)}")
    if block.parameter(step.of[0]) is not None:
        raise block.refused(
            step.line,
            f"step {step.name}: its first operand is the parameter {step.of[0]}: name {INPUT} or the result of a step "
            "first",
        )


def _check_whole(block: OwnBlock, known: Mapping[str, tuple[str, ...]]) -> None:
    """Refuse a block whose result is no residual stream, and names that nothing reads."""
    last = block.steps[-1]
    if last.name != OUTPUT:
        raise block.refused(last.line, f"the last step is {last.name}, and it must be {OUTPUT}: rename it")
    if known[OUTPUT] != STREAM:
        raise block.refused(
            last.line,
            f"step {OUTPUT} makes ({_text(known[OUTPUT])}), and a block makes ({_text(STREAM)}): bring it to these "
            "axes with an einsum",
        )
    read = {name for step in block.steps for name in step.of}
    if INPUT not in read:
        raise block.refused(last.line, f"no step reads {INPUT}: name it in one")
    named = [("parameter", each.name, each.line) for each in block.parameters]
    named += [("step", each.name, each.line) for each in block.steps[:-1]]
    for what, name, line in named:
        if name not in read:
            raise block.refused(line, f"no step reads the {what} {name}: name it in one, or leave it out")
    used = {axis for axes in (*(each.labels for each in block.parameters), *known.values()) for axis in axes}
    for axis, _ in block.axes:
        if axis not in used:
            raise block.refused(0, f"nothing has the axis {axis}: leave it out of axes")


def _axes(block: OwnBlock, name: str, known: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    parameter = block.parameter(name)
    return known[name] if parameter is None else parameter.labels


def _result(
    block: OwnBlock, step: BlockStep, known: Mapping[str, tuple[str, ...]], terms: dict[str, EinsumTerms]
) -> tuple[str, ...]:
    operands = [_axes(block, name, known) for name in step.of]
    if step.operator == "einsum":
        terms[step.name] = _terms(block, step, operands)
        return terms[step.name].result
    if _is_packed(step) and block.size(operands[0][-1]) != 2:
        raise block.refused(
            step.line,
            f"step {step.name}: gate reads two values along the last axis of its operand, or two operands, and "
            f"{step.of[0]} has the axes ({_text(operands[0])}): let an axis of the size 2 be the last one",
        )
    for name, axes in zip(step.of[1:], operands[1:], strict=True):
        _check_broadcast(block, step, operands[0], name, axes)
    if step.operator in OVER_LAST:
        _check_last(block, step, operands[0])
    return operands[0][:-1] if _is_packed(step) else operands[0]


def _is_packed(step: BlockStep) -> bool:
    """Whether a gate has gate and up along the last axis of its operand."""
    return step.operator == "gate" and len(step.of) == 1


def _check_broadcast(
    block: OwnBlock, step: BlockStep, first: tuple[str, ...], name: str, axes: tuple[str, ...]
) -> None:
    """Refuse an operand that does not have the axes of the first one, or those that its operator repeats."""
    takes = [first]
    if step.operator in ("add", "multiply") and block.parameter(name) is not None:
        takes += [first[at:] for at in range(1, len(first))]
    elif step.operator == "multiply":
        takes.append(first[:-1])
    if axes not in takes:
        last = "; a parameter may have the last of them alone" if len(takes) > 2 else ""
        raise block.refused(
            step.line,
            f"step {step.name}: {name} has the axes ({_text(axes)}), and {step.of[0]} ({_text(first)}): "
            f"{step.operator} takes operands of the same axes{last}; an einsum joins others",
        )


def _check_last(block: OwnBlock, step: BlockStep, axes: tuple[str, ...]) -> None:
    if axes[-1] in ("batch", "seq"):
        raise block.refused(
            step.line,
            f"step {step.name}: {step.operator} reads all values along {axes[-1]}, of which ranks hold parts: let "
            "another axis be the last one (for keys an axis of the size seq)",
        )
    others = [axis for axis in axes[:-1] if block.is_sequence(axis)]
    if step.operator == "causal_softmax" and (not block.is_sequence(axes[-1]) or len(others) != 1):
        raise block.refused(
            step.line,
            f"step {step.name}: causal_softmax takes scores of queries and keys, such as (batch seq key) with the axis "
            f"key: seq, and {step.of[0]} has ({_text(axes)})",
        )


def _terms(block: OwnBlock, step: BlockStep, operands: list[tuple[str, ...]]) -> EinsumTerms:
    """The axes of an einsum. A sequence may have the name of another axis of its size: keys in place of queries."""
    inside, arrow, outside = str(step.argument).partition("->")
    texts = inside.split(",")
    if not arrow or len(texts) != 2 or not outside.strip() or "->" in outside or "," in outside:
        raise block.refused(
            step.line,
            f"step {step.name}: einsum takes two operands and a result, such as 'batch seq hidden, ffn hidden -> batch "
            f"seq ffn', not {shown(step.argument)}",
        )
    first, second, result = (tuple(text.split()) for text in (*texts, outside))
    names = (*STREAM, *(axis for axis, _ in block.axes))
    for term in (first, second, result):
        for axis in term:
            if axis not in names:
                hint = did_you_mean(axis, names)
                raise block.refused(
                    step.line, f"step {step.name}: unknown axis {shown(axis)}{hint}; the block has {', '.join(names)}"
                )
        if len(set(term)) < len(term):
            raise block.refused(step.line, f"step {step.name}: ({_text(term)}) names an axis twice: rename one")
    for name, axes, term in zip(step.of, operands, (first, second), strict=True):
        _check_term(block, step, name, axes, term)
    _check_sums(block, step, EinsumTerms(first, second, result))
    return EinsumTerms(first, second, result)


def _check_term(block: OwnBlock, step: BlockStep, name: str, axes: tuple[str, ...], term: tuple[str, ...]) -> None:
    same = len(axes) == len(term) and all(
        axis == label or (block.is_sequence(axis) and block.is_sequence(label))
        for axis, label in zip(axes, term, strict=False)
    )
    if not same:
        raise block.refused(
            step.line, f"step {step.name}: {name} has the axes ({_text(axes)}), and the einsum reads ({_text(term)})"
        )


def _check_sums(block: OwnBlock, step: BlockStep, terms: EinsumTerms) -> None:
    """Refuse an axis that only one of the operands and the result has, and more axes than are multiplied here."""
    labels = dict.fromkeys((*terms.first, *terms.second, *terms.result))
    if len(labels) > MOST_LABELS:
        raise block.refused(step.line, f"step {step.name}: an einsum of {len(labels)} axes: at most {MOST_LABELS}")
    for axis in labels:
        if sum(axis in term for term in (terms.first, terms.second, terms.result)) > 1:
            continue
        if axis in terms.result:
            text = f"the result has {axis}, and no operand has it: leave it out, or let an operand have it"
        else:
            owner = step.of[0] if axis in terms.first else step.of[1]
            text = (
                f"{axis} of {owner} is in neither the other operand nor the result, so that values would be added up "
                "without a product: keep it in the result, or contract it with a parameter"
            )
        raise block.refused(step.line, f"step {step.name}: {text}")
    if "batch" not in terms.result:
        raise block.refused(
            step.line, f"step {step.name}: batch must be in the result: sequences of a batch do not meet in a block"
        )


def _cut(
    block: OwnBlock, step: BlockStep, known: Mapping[str, tuple[str, ...]], terms: Mapping[str, EinsumTerms]
) -> str:
    """The axis that tp cuts in a step. UsageError where it would cut two."""
    read = [each for each in map(block.parameter, step.of) if each is not None]
    found = list(dict.fromkeys(each.tp for each in read if each.tp))
    if not found:
        # A rank has all of a whole parameter, and all values along an axis that an operator reads at once.
        whole = {axis for each in read for axis in each.labels}
        if step.operator in OVER_LAST or _is_packed(step):
            whole.add(known[step.of[0]][-1])
        here = dict.fromkeys(_all_axes(block, step, known, terms))
        cut = {each.tp for each in block.parameters if each.tp}
        found = [axis for axis in here if axis in cut and axis not in whole]
    if len(found) > 1:
        raise block.refused(
            step.line,
            f"step {step.name}: tp would cut {' and '.join(found)} at once, and ranks of tp hold parts of one axis: "
            "leave `tp` out of a parameter, or write the step as two",
        )
    return found[0] if found else ""


def _all_axes(
    block: OwnBlock, step: BlockStep, known: Mapping[str, tuple[str, ...]], terms: Mapping[str, EinsumTerms]
) -> Iterator[str]:
    if step.name in terms:
        each = terms[step.name]
        yield from (*each.first, *each.second, *each.result)
        return
    for name in step.of:
        yield from _axes(block, name, known)


def _mixes(block: OwnBlock, step: BlockStep, terms: Mapping[str, EinsumTerms]) -> bool:
    """Whether an einsum contracts a sequence, or pairs its tokens with others."""
    if step.name not in terms:
        return False
    each = terms[step.name]
    sequences = {axis for axis in (*each.first, *each.second, *each.result) if block.is_sequence(axis)}
    return sequences != {"seq"} or "seq" not in each.result


def _text(axes: tuple[str, ...]) -> str:
    return " ".join(axes)
