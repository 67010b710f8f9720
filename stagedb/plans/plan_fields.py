"""The fields of a plan, and what follows from them alone. `stagedb.plans.plan` checks them.

The checks of each aspect (`*_checks.py`) read these fields, and `Plan` calls the checks, so that neither imports the
other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from stagedb.ir.expressions import evaluate
from stagedb.plans.aspects import LayoutAspects
from stagedb.plans.dtypes import Dtypes
from stagedb.plans.graph_options import GraphOptions
from stagedb.plans.request_batches import DECODE_SYMBOLS, MEAN_SYMBOLS, RequestBatch, batch_of, value_over
from stagedb.schedules import (
    SCHEDULES,
    ChunkPlacement,
    Task,
    parse_order,
    placement_of,
    splits,
    stage_orders,
    whole_backwards,
)
from stagedb.workflows import Workflow, find_workflow


def gained_tokens(acceptance: float, drafted: int) -> Fraction:
    """Tokens that a request gains in a step, in the mean: one, and those of its draft that are accepted.

    acceptance: the probability that a drafted token is accepted if those before it are. drafted: tokens of the draft.
    Source: Leviathan et al. 2023 (arXiv 2211.17192), equation 1.
    """
    share = Fraction(str(acceptance))
    return sum((share**place for place in range(drafted + 1)), Fraction(0))


@dataclass(frozen=True)
class RecomputedLayers:
    """The layers that recompute.

    every: each n-th layer of a stage. first: only among the first n layers of a chunk; None: among all.
    """

    every: int = 1
    first: int | None = None

    def has(self, layer: int, of_chunk: int) -> bool:
        """Whether a layer recomputes. layer: its number among the layers of its stage, from 0. of_chunk: among those of
        its chunk."""
        return (self.first is None or of_chunk < self.first) and (layer + 1) % self.every == 0


@dataclass(frozen=True)
class _Structure:
    """The graph that the plan is for, and the formats of its tensors."""

    options: GraphOptions = field(default_factory=GraphOptions)
    # `Plan` replaces None, so that readers always find a Dtypes: it depends on the framework of the options.
    dtypes: Dtypes = None  # type: ignore[assignment]  # see above


@dataclass(frozen=True)
class PlanFields(LayoutAspects, _Structure):
    """The words of a plan as values. `stagedb.plans.aspects` explains each."""

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def shards(self) -> int:
        """Number of ranks that gradients are reduced over, and share what is sharded: dp and cp over the copies."""
        return self.dp // self.hsdp * (self.cp if self.options.cp_grad_sync else 1)

    @property
    def expert_axes(self) -> tuple[str, ...]:
        """The mesh axes that experts are spread over: dp and cp, and tp if its ranks have whole experts."""
        return ("cp", "dp") if self.options.expert_tp else ("tp", "cp", "dp")

    @property
    def expert_ranks(self) -> int:
        """Number of ranks that experts are spread over, in parts or as copies."""
        return math.prod(getattr(self, axis) for axis in self.expert_axes)

    @property
    def exchanging(self) -> int:
        """Number of ranks that send tokens to each other for their experts: ep, where ranks of tp with the same tokens
        count once."""
        return max(self.ep // (self.tp if self.options.experts_of_tp else 1), 1)

    @property
    def edp(self) -> int:
        """Number of ranks that hold the same experts."""
        return self.expert_ranks // self.ep

    @property
    def batch(self) -> int:
        """The global batch size: sequences of all ranks in a step."""
        return self.global_batch_size or self.micro_batch_size * self.dp

    @property
    def keys(self) -> int:
        """Number of positions of a sequence with keys at the end of a step: those of its cache and of its tokens."""
        return self.seq_len + self.cache_len

    @property
    def request_batch(self) -> RequestBatch | None:
        """The requests of a micro-batch on a rank of dp, if they differ in length: one sequence of all their tokens."""
        return batch_of(self.requests) if self.requests else None

    @property
    def positions(self) -> int:
        """Number of positions (tokens with those in the cache) of the longest sequence or request."""
        batch = self.request_batch
        return self.keys if batch is None else batch.longest

    def evaluate(self, text: str, env: Mapping[str, int], what: str = "") -> int:
        """The value of an expression of a graph under the plan; each request sees only its own keys.

        env: the values of symbols (`Plan.env`). what: what the value is, for errors. text: the expression.
        """
        batch = self.request_batch
        return evaluate(text, env, what=what) if batch is None else value_over(text, env, batch, what)

    def request_symbols(self) -> dict[str, int]:
        """The symbols that describe the requests of a rank: `last`, the tokens of each sequence that have logits, and
        the sizes of an attention of requests of one length that is as much work as theirs.

        A step that mixes prefills and decodes has the sizes of either.
        """
        batch = self.request_batch
        if batch is None:
            alike = self.micro_batch_size, self.seq_len, self.keys
            return {"last": 1, **dict(zip(MEAN_SYMBOLS, alike, strict=True))}
        sums = batch.prefill if self.workflow.mixes else batch.sums
        means = dict(zip(MEAN_SYMBOLS, sums.mean, strict=True))
        return {"last": batch.sums.n, **means, **dict(zip(DECODE_SYMBOLS, batch.decode.mean, strict=True))}

    @property
    def drafted(self) -> int:
        """Number of tokens of a draft that a step checks for each request; 0 in workflows without drafts."""
        if not self.workflow.drafts:
            return 0
        batch = self.request_batch
        return (self.seq_len if batch is None else batch.sums.q // batch.sums.n) - 1

    @property
    def accepted(self) -> Fraction | None:
        """Tokens that a request gains in a step that checks a draft, in the mean: one of the model's own, and those
        that it accepts. None in other workflows, and without an acceptance.
        """
        return None if self.acceptance is None else gained_tokens(self.acceptance, self.drafted)

    @property
    def tokens(self) -> Fraction | None:
        """Tokens that a step is for: those of all sequences; in a step that checks drafts the tokens that requests
        gain. None without an acceptance.
        """
        if not self.workflow.drafts:
            return Fraction(self.batch * self.seq_len)
        batch, gained = self.request_batch, self.accepted
        requests = self.batch * (1 if batch is None else batch.sums.n)
        return None if gained is None else requests * gained

    @property
    def microbatches(self) -> int:
        """Number of micro-batches that each data-parallel rank runs in a step."""
        return self.batch // (self.micro_batch_size * self.dp)

    @property
    def placement(self) -> ChunkPlacement:
        """Where the chunks of the stages are in the pipeline."""
        return placement_of(self.schedule, self.chunk_placement)

    @property
    def workflow(self) -> Workflow:
        """The workflow that the options name: what a step runs."""
        return find_workflow(self.options.workflow)

    def orders(self) -> tuple[tuple[Task, ...], ...]:
        """The tasks of each stage in the schedule's order."""
        if self.task_order:
            return tuple(
                parse_order(text, f"task_order[{stage}]", self.workflow) for stage, text in enumerate(self.task_order)
            )
        return stage_orders(
            self.schedule, self.pp, self.microbatches, self.virtual_stages, self.workflow, self.overlap_experts
        )

    @property
    def may_split(self) -> bool:
        """Whether backwards may run as two halves: without a look at every task, as searches ask it of many plans."""
        return bool(self.task_order) or SCHEDULES[self.schedule].halves

    def tasks(self) -> tuple[tuple[Task, ...], ...]:
        """The tasks that each stage's ranks run: the order of tasks as the framework's runtime runs it."""
        orders = self.orders()
        if not self.options.framework.whole_first_backward or not self.may_split:
            return orders
        stage, chunk = self.placement.located(0, self.pp)
        if not splits(orders[stage]):
            return orders
        return (*orders[:stage], whole_backwards(orders[stage], chunk), *orders[stage + 1 :])

    @property
    def runs_halves(self) -> bool:
        """Whether some stage's ranks run a backward as two halves."""
        return self.may_split and any(map(splits, self.tasks()))

    @property
    def posts_ahead(self) -> bool:
        """Whether the framework's runtime posts messages ahead of the tasks that need them."""
        framework = self.options.framework
        other = self.pp > 1 and self.schedule not in framework.single_schedules
        return framework.posts_ahead and (self.virtual_stages > 1 or other)

    @property
    def recomputed(self) -> RecomputedLayers:
        """The layers that recompute the operators that the options choose."""
        return RecomputedLayers(self.recompute_every, self.recompute_first)

    @property
    def recomputes_all(self) -> bool:
        """Whether every layer recomputes what the options choose. What is outside layers recomputes only then."""
        return self.recomputed == RecomputedLayers()

    def recomputes(self, layer: int, of_chunk: int) -> bool:
        """Whether a layer recomputes the operators that the options choose (`RecomputedLayers.has`).

        layer: its number among the layers of its stage, from 0. of_chunk: its number among those of its chunk.
        """
        return self.recomputed.has(layer, of_chunk)
