"""The trial of own blocks: numpy runs each at tiny sizes, whole and on simulated ranks, before a graph has it.

A block is accepted if its forward runs, its derived backward agrees with finite differences, and every mesh computes
what one rank computes. A failure names the file, the line and the step.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from stagedb.errors import UsageError
from stagedb.frameworks import FRAMEWORKS
from stagedb.graphs.block import BlockPlan, LaidOut, lay_out
from stagedb.graphs.simulated_ranks import MESH, FailedOperation, SimulatedRanks, same
from stagedb.ir.collective_matcher import Matching
from stagedb.ir.operators import Array
from stagedb.mentions import Word
from stagedb.models import Card
from stagedb.models.kinds import HIDDEN, OwnBlock
from stagedb.models.kinds.own import part_of, shapes_of
from stagedb.models.style import Style
from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.strategies import rules

MESHES = ((2, 1, 1), (1, 1, 2), (1, 2, 1), (2, 2, 2))
"""Degrees of dp, cp and tp on which a block is tried. A block that mixes the sequence is tried without cp."""

STREAM_SIZES: Mapping[str, int] = {"batch": 2, "seq": 4, "hidden": 6}

OTHER_SIZES = (4, 6, 2)
"""Sizes of a block's own axes, in turn. Every degree divides them."""

SCALES = (0.5, 0.3, 0.2)
"""Sizes of random values. Others are tried where a difference meets the corner of a function such as relu."""

MOVED = 1e-5
"""How far finite differences move a value."""

CLOSE = 1e-6
"""The difference of a derivative, relative to its size and that of the function."""

PLAIN = Style(
    pack_qkv=False,
    pack_gate=False,
    row_bias="inside",
    linear="",
    experts="",
    embedding_dropout="embedding",
    attention="fused",
    eager=False,
    dropout=0.0,
    loss_parallel=False,
    apart=False,
    explicit_mask=False,
    core=None,
)
"""The forward as a file has it, in full precision."""


def check_blocks(card: Card, options: GraphOptions | None = None) -> None:
    """Try the own blocks of a card at tiny sizes (`BlockTrial`). Raises UsageError for a block that fails.

    options: those of the graph that is built. Raises UsageError too for a block that these do not allow; None: not
    checked.
    """
    for block in card.blocks:
        _try(block, card)
        mixes = shapes_of(block).mixes
        if mixes and options is not None and options.cp_kind != "none":
            raise block.refused(
                mixes[0].line,
                f"step {mixes[0].name} reads several tokens of a sequence, and ranks of cp hold parts of it: take "
                f"{Word('cp', 1)} (tp and dp divide the work too), or a mixer that stagedb has",
            )


@lru_cache(maxsize=64)
def _try(block: OwnBlock, card: Card) -> None:
    trial = BlockTrial(block, card, _sizes(block))
    whole = trial.on(GraphOptions(), dict.fromkeys(MESH, 1))
    try:
        with np.errstate(all="ignore"):
            given, values = trial.whole_run(whole)
            for ranks in _meshes(trial, bool(shapes_of(block).mixes)):
                trial.check_same(ranks, ranks.run(given), whole, values)
    except FailedOperation as error:
        raise trial.refused(
            error.name, f"numpy cannot run it at tiny sizes: {error}: write it in another way"
        ) from None


def _sizes(block: OwnBlock) -> dict[str, int]:
    """A tiny size for each axis. An axis of 1 or 2, such as a pair, keeps its size unless ranks cut it."""
    sizes, others = {**STREAM_SIZES}, itertools.cycle(OTHER_SIZES)
    cut = {each.tp for each in block.parameters}
    for axis, size in block.axes:
        tiny = STREAM_SIZES["seq"] if size == "seq" else next(others)
        sizes[block.in_graph(axis)] = int(size) if size in (1, 2) and axis not in cut else tiny
    return sizes


def _meshes(trial: "BlockTrial", mixes: bool) -> Iterator[SimulatedRanks]:
    for recipe, (dp, cp, tp), sp in itertools.product(FRAMEWORKS, MESHES, (False, True)):
        if not (sp and tp == 1) and not (mixes and cp > 1 and tp == 1):
            yield trial.on(GraphOptions(recipe=recipe, sp=sp), {"dp": dp, "cp": 1 if mixes else cp, "tp": tp})


@dataclass(frozen=True)
class BlockTrial:
    """A trial of an own block of a card in numpy. sizes: a tiny size for each axis of its tensors, by name."""

    block: OwnBlock
    card: Card
    sizes: Mapping[str, int]

    def on(self, options: GraphOptions, degrees: Mapping[str, int]) -> SimulatedRanks:
        """The block laid out on simulated ranks. options: of the graph. degrees: ranks by mesh axis (dp, cp, tp)."""
        part, framework = part_of(self.block), options.framework
        plan = BlockPlan(
            name="trial",
            repeat="1",
            trace=lambda t, x: part.forward(t, self.card, PLAIN, {}, x).result,
            input=True,
            loss=False,
        )
        matching = Matching(options.shared_input, framework.regather, framework.whole_backward)
        table = rules(options, parts=(part,))
        return SimulatedRanks(lay_out(plan, table, matching, HIDDEN, lambda has_bias: False), degrees, self.sizes)

    def whole_run(self, whole: SimulatedRanks) -> tuple[dict[str, Array], dict[str, Array]]:
        """Run the block on one rank until its gradients agree with finite differences, at several scales of its input.

        Returns the values that it was given, and all values of the run, by tensor. Raises UsageError if no scale
        agrees.
        """
        wrong = None
        for seed, scale in enumerate(SCALES):
            given = self.values(whole.laid, seed, scale)
            values = whole.run(given)
            self.check_finite(whole, values)
            wrong = self.wrong_gradient(whole, given, values)
            if wrong is None:
                return given, values
        name, derived, measured = wrong or ("", 0.0, 0.0)
        readers = ", ".join(step.name for step in self.block.steps if name in step.of)
        raise self.block.refused(
            next((step.line for step in self.block.steps if name in step.of), 0),
            f"the derived backward has {derived:.6g} as the gradient of {name} along a direction, and finite "
            f"differences {measured:.6g}: write the steps that read it ({readers}) with other operators",
        )

    def values(self, laid: LaidOut, seed: int, scale: float) -> dict[str, Array]:
        """Random values of the input, the weights and the arriving gradient.

        scale: the standard deviation. seed: of numpy's generator; equal seeds give equal values.
        """
        rng = np.random.default_rng(seed)
        tensors = sorted((*laid.weights, *laid.given), key=lambda tensor: tensor.name)
        return {each.name: scale * rng.normal(size=[self.sizes[axis] for axis in each.axes]) for each in tensors}

    def check_finite(self, whole: SimulatedRanks, values: Mapping[str, Array]) -> None:
        """Raise UsageError for the first operation whose results are not finite.

        whole: the run that made the values. values: each tensor's array, by name.
        """
        for op in whole.laid.operations:
            if not all(np.isfinite(values[tensor.name]).all() for tensor in op.outputs):
                made = "has gradients" if op.template.differentiates else "makes numbers"
                raise self.refused(op.origin, f"it {made} that are not finite: normalise or bound what it reads")

    def wrong_gradient(
        self, whole: SimulatedRanks, given: Mapping[str, Array], values: Mapping[str, Array]
    ) -> tuple[str, float, float] | None:
        """The first tensor whose gradient differs from finite differences along a random direction; None if all agree.

        given, values: what a run was given, and all that it computed. Returns the name, the derived and the measured
        number.
        """
        laid, rng, made = whole.laid, np.random.default_rng(1), whole.results(values)
        arriving = given[laid.output_gradient.name] if laid.output_gradient else np.zeros(())
        total = float(np.sum(made["output"] * arriving))
        for tensor in (laid.input, *laid.weights):
            if tensor is None:
                continue
            key = "input" if tensor is laid.input else tensor.name
            along, ends = rng.normal(size=given[tensor.name].shape), list[float]()
            for move in (MOVED, -MOVED):
                moved = {**given, tensor.name: given[tensor.name] + move * along}
                ends.append(float(np.sum(whole.output(moved) * arriving)))
            measured, derived = (ends[0] - ends[1]) / (2 * MOVED), float(np.sum(made[key] * along))
            if not abs(measured - derived) <= CLOSE * (1 + abs(measured) + abs(total)):
                return self.name_in_file(tensor.name), derived, measured
        return None

    def check_same(
        self, ranks: SimulatedRanks, made: Mapping[str, Array], whole: SimulatedRanks, values: Mapping[str, Array]
    ) -> None:
        """Raise UsageError for the first operation whose result on several ranks differs from that on one rank.

        made: whole tensors of the run on `ranks`. values: those of the run on one rank, `whole`.
        """
        names = {tensor.name: op for op in whole.laid.operations for tensor in op.outputs}
        for name, op in names.items():
            if name in made and not same(made[name], values[name]):
                raise self.refused(op.origin, f"on {ranks.name} it makes other values than on one rank: {NO_CUT}")
        ours, theirs = ranks.results(made), whole.results(values)
        for name, value in theirs.items():
            if not same(ours[name], value):
                raise self.refused(name, f"on {ranks.name} its gradient differs from that on one rank: {NO_CUT}")

    def refused(self, operation: str, text: str) -> UsageError:
        """The error for a step of the block's file, with the line of that step.

        operation: the name of an operation that the step made. text: what is wrong with it.
        """
        name = self.name_in_file(operation)
        lines = {each.name: each.line for each in self.block.parameters}
        lines |= {each.name: each.line for each in self.block.steps}
        return self.block.refused(lines.get(name, 0), f"step {name}: {text}")

    def name_in_file(self, name: str) -> str:
        """The name of a step or parameter in the block's file: `up` for `trial.mine.up.weight` in the graph."""
        parts = name.split(".")
        return parts[2] if len(parts) > 2 else parts[-1]


NO_CUT = "leave `tp` out of the parameters that it reads"
