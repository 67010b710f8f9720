"""A plan: how one training step of a model is laid out over ranks. It is checked against the model before use."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word
from stagedb.models.sizes import numbers_of_heads
from stagedb.plans.aspects import FORMAT_WORDS, GRAPH_WORDS, LAYOUT_WORDS, PLAN_WORDS, chosen_words, plain_words
from stagedb.plans.aspects.degrees import RANK_ORDER
from stagedb.plans.context_checks import (
    SCANNED,
    check_context,
    check_heads,
    check_kind_given,
    check_sequence,
    check_turns,
    check_whole_groups,
    with_default_kind,
)
from stagedb.plans.dtypes import Dtypes
from stagedb.plans.expert_checks import (
    capacity,
    check_expert_parallelism,
    check_experts,
    expert_parts,
    load_symbols,
    settled_routing,
    smallest,
    widths,
)
from stagedb.plans.expert_load import read_routing, whole_ratio, with_whole_choices
from stagedb.plans.graph_options import GraphOptions, check_needed
from stagedb.plans.layer_split import check_shared_layers, check_split, chunk_layers, stage_layers
from stagedb.plans.nearest_plans import Change, Misfit, Way, multiples, nearest, tried_by
from stagedb.plans.order_files import ENDINGS, read_schedule_file
from stagedb.plans.plan_fields import PlanFields
from stagedb.plans.request_batches import read_requests, request_words
from stagedb.plans.schedule_checks import (
    check_messages,
    check_overlap,
    check_recomputed_halves,
    check_schedule,
    explicit,
    implied,
    placed,
    settled,
)
from stagedb.plans.serving_checks import check_drafts, check_requests, check_scanned_requests, check_shared_tokens
from stagedb.plans.sharding_checks import (
    check_clipping,
    check_parts,
    check_sharding,
    check_strategy,
    check_units,
    check_version,
)
from stagedb.plans.training_checks import (
    check_adapters,
    check_gathered,
    check_loss,
    check_offload,
    check_optimizer,
    check_rank,
    check_recomputed_layers,
    check_recomputed_of,
    check_states,
)
from stagedb.plans.written_words import typed_words
from stagedb.schedules import EXPLICIT
from stagedb.workflows import find_workflow

MOST_RANKS = 2**20
"""The largest world. Ranks are counted one by one, and the largest machines of today have 2**18."""


@dataclass(frozen=True)
class Plan(PlanFields):
    """Degrees, batches, schedule and formats of one training step, checked (`stagedb.plans.aspects`).

    Raises UsageError for values that no model can run. `check` checks them for one model.
    """

    def __post_init__(self) -> None:
        self._settle(options=with_default_kind(self.options, self.cp, self.ulysses))
        if self.dtypes is None:
            self._settle(dtypes=Dtypes.of(self.options.recipe))
        self._settle(**settled(self.schedule, self.virtual_stages))
        self.dtypes.check(self.options.recipe, self.options.matmul_dtype == "fp8", self.options.weight_dtype != "same")
        check_needed(self.workflow, FORMAT_WORDS.values(), self.dtypes, self.dtypes.usual(self.options.recipe))
        with tried_by(self.changed):
            self._check()

    def _check(self) -> None:
        for word in LAYOUT_WORDS.values():
            word.check(getattr(self, word.field))
        check_needed(self.workflow, LAYOUT_WORDS.values(), self, {})
        if self.world > MOST_RANKS:
            raise UsageError(
                f"{shown(self.world)} ranks (dp {shown(self.dp)} x tp {shown(self.tp)} x pp {shown(self.pp)} x cp "
                f"{shown(self.cp)}) are too many: a plan takes at most {MOST_RANKS}"
            )
        if self.expert_load:
            self._settle(expert_load=smallest(self.expert_load))
        check_context(self)
        check_expert_parallelism(self)
        if self.routing:
            self._settle(routing=settled_routing(self))
        check_sharding(self)
        check_parts(self)
        check_units(self)
        check_version(self)
        check_clipping(self)
        check_recomputed_layers(self)
        check_adapters(self)
        check_optimizer(self)
        check_states(self)
        check_offload(self)
        if sorted(self.rank_order) != sorted(RANK_ORDER):
            raise UsageError(
                f"rank order {','.join(self.rank_order)} does not name each of {', '.join(RANK_ORDER)} once "
                f"({Word('rank_order')}, innermost first)"
            )
        self._check_batch()
        check_schedule(self)
        check_messages(self)
        self._settle(**(explicit(self) if self.schedule == EXPLICIT else placed(self)))
        check_overlap(self)
        check_recomputed_halves(self)
        check_split(self)
        check_requests(self)

    def _settle(self, **fields: object) -> None:
        """Set words that follow from other words, before other code has the plan."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_mapping(cls, words: Mapping[str, object]) -> "Plan":
        """A plan from flat words, as on the command line (`tp`, `micro-batch-size`, `dtype`, …).

        `ranks` gives dp = ranks / (tp * pp * cp) if dp is not given. Raises UsageError for unknown words (with similar
        ones), wrong types, and ranks that do not divide (with the nearest that do).
        """
        typed = typed_words(words)
        ranks = typed.pop("ranks", None)
        if str(typed.get("schedule", "")).lower().endswith(ENDINGS):
            if "task_order" in typed:
                raise UsageError(
                    f"the plan gives its order of tasks twice: as task_order, and as a file ({Word('schedule')})"
                )
            path = Path(typed["schedule"])
            found = read_schedule_file(path)
            if found.placement is not None and "chunk_placement" in typed:
                raise UsageError(f"the plan places its chunks twice: in {path}, and with {Word('chunk_placement')}")
            placement = {} if found.placement is None else {"chunk_placement": found.placement}
            typed |= {"task_order": found.stages, "schedule": EXPLICIT, **placement}
        if "expert_load" in typed:
            typed["expert_load"] = whole_ratio(typed["expert_load"])
        if isinstance(typed.get("routing"), str):
            typed["routing"] = read_routing(Path(typed["routing"]))
        if typed.get("requests"):
            typed["requests"] = read_requests(typed["requests"])
            typed |= request_words(typed)
        every = {**typed} if ranks is None else {**typed, "ranks": ranks}
        options = GraphOptions(**{word: typed.pop(word) for word in GRAPH_WORDS if word in typed})
        formats = {word.removesuffix("_dtype"): typed.pop(word) for word in FORMAT_WORDS if word in typed}
        dtypes = Dtypes.of(options.recipe, **formats)
        with tried_by(lambda change: cls.from_mapping({**every, **change})):
            check_kind_given(every, options)
            if ranks is not None:
                typed["dp"] = _dp_of(ranks, typed)
            lengths = {"seq_len": 1} if find_workflow(options.workflow).decodes else {}
            return cls(options=options, dtypes=dtypes, **{**lengths, **typed, **implied(typed)})

    def with_ranks(self, ranks: int) -> "Plan":
        """The plan on another number of ranks: only dp changes."""
        same = {word: value for word, value in self.to_dict().items() if word != "dp"}
        return Plan.from_mapping({**same, "ranks": ranks})

    def changed(self, change: Change) -> "Plan":
        """The plan with some words changed. change: the words with their new values."""
        return Plan.from_mapping({**self.to_dict(), **change})

    def to_dict(self) -> dict[str, Any]:
        """The plan as flat words: `Plan.from_mapping(plan.to_dict()) == plan`."""
        formats = plain_words(FORMAT_WORDS, self.dtypes)
        return plain_words(LAYOUT_WORDS, self) | formats | self.options.to_dict()

    def to_json(self) -> str:
        """The flat words as JSON text with sorted keys."""
        return json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))

    @property
    def chosen(self) -> dict[str, Any]:
        """The words that have another value than their default, for ids: a word of a later version changes none."""
        return chosen_words(PLAN_WORDS, self.to_dict())

    @property
    def digest(self) -> str:
        """sha256 of the plan's meaning: a plan that leaves a default out has the digest of one that gives it."""
        return hashlib.sha256(json.dumps(self.canonical.chosen, sort_keys=True).encode()).hexdigest()

    @property
    def canonical(self) -> "Plan":
        """The plan with all defaults filled in, and without a load of experts that is even."""
        even = len(set(self.expert_load)) < 2
        return dataclasses.replace(self, global_batch_size=self.batch, expert_load=() if even else self.expert_load)

    def stage_layers(self, layers: int) -> tuple[int, ...]:
        """The number of layers of each stage, in order. UsageError if the plan's split is of another model."""
        return stage_layers(self, layers)

    def chunk_layers(self, layers: int) -> tuple[int, ...]:
        """Layers of each chunk, in the order of the pipeline (`placement`).

        Raises UsageError if the chunks of a stage cannot share its layers equally and no word gives their numbers.
        """
        return chunk_layers(self, layers, lambda change: self.changed(change).chunk_layers(layers))

    def check(self, sizes: Mapping[str, int]) -> None:
        """Raise UsageError, with the nearest valid value, when a model of these sizes cannot run under this plan."""
        with tried_by(lambda change: self.changed(change).check(sizes)):
            self._check_model(sizes)

    def _check_model(self, sizes: Mapping[str, int]) -> None:
        check_shared_layers(self, sizes)
        check_recomputed_of(self, self.chunk_layers(sizes["L"]), self.stage_layers(sizes["L"]))
        rules = self._tp_rules(sizes)
        broken = next((reason for reason, fits in rules if not fits(self.tp)), None)
        if broken is not None:
            near = nearest("tp", self.tp, sizes["A"], lambda tp: all(fits(tp) for _, fits in rules))
            raise Misfit(f"tp {self.tp} {broken}", near, lead="the nearest for this model is")
        check_whole_groups(self, sizes)
        check_heads(self, sizes)
        check_turns(self, sizes)
        check_rank(self, sizes)
        check_gathered(self, sizes)
        check_strategy(self, sizes)
        if self.positions > sizes.get("P", self.positions):
            raise UsageError(
                f"a sequence of {self.positions} tokens is longer than the model's {sizes['P']} learned positions: "
                f"{Word('seq_len')} takes at most {sizes['P']}"
            )
        check_experts(self, sizes)
        check_sequence(self)
        check_loss(self)
        check_scanned_requests(self, sizes)
        check_drafts(self, sizes)
        check_shared_tokens(self, sizes)

    def rank_symbols(self, sizes: Mapping[str, int], cp_rank: int, ep_rank: int) -> dict[str, int]:
        """The values of the symbols that differ between ranks of a stage.

        sizes: the model's. cp_rank, ep_rank: coordinates.
        """
        loads = load_symbols(self, sizes, (ep_rank,))[0] if "E" in sizes else {}
        return {"cp_rank": cp_rank + 1, **loads}

    def symbols_of_ep(self, sizes: Mapping[str, int]) -> list[dict[str, int]]:
        """For each rank of ep, the values of the symbols that differ between ranks of ep. sizes: those of the model."""
        return load_symbols(self, sizes, range(self.ep)) if "E" in sizes else [{}]

    def env(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """The values of the symbols of expressions: the model's sizes, degrees, B, S, SK, bytes of dtype classes.

        B is the global micro-batch: the sequences that all data-parallel ranks together run at once. S: the queries of
        a sequence. SK: its keys, more of them where requests have a cache. Those of requests: `request_symbols`.
        copies: the number of copies of the parameters, including a master copy. runs: how often a recomputed operator
        runs; 1 without recomputing. cp_rank, step and load_here have the values of the first rank and the first turn.
        """
        return {
            **sizes,
            "B": self.micro_batch_size * self.dp,
            "SK": self.keys,
            **self.request_symbols(),
            **{word.about.symbol: getattr(self, word.field) for word in LAYOUT_WORDS.values() if word.about.symbol},
            "cpr": self.cp // self.ulysses,
            "cpa": self.ulysses,
            "ep": self.exchanging,
            "epn": self.exchanging // self.node_ranks,
            "edp": self.edp,
            **expert_parts(self, sizes),
            **capacity(self),
            **self.rank_symbols(sizes, 0, 0),
            **self.dtypes.widths(),
            "runs": 2,
            "step": 1,
            "copies": 1 if self.dtypes.master == "none" else 2,
        }

    def _check_batch(self) -> None:
        if self.global_batch_size is None:
            return
        unit = self.micro_batch_size * self.dp
        if self.global_batch_size < 1 or self.global_batch_size % unit:
            raise Misfit(
                f"a global batch of {self.global_batch_size} is not divisible by micro-batch {self.micro_batch_size} "
                f"x dp {self.dp} = {unit}",
                multiples("global_batch_size", self.global_batch_size, unit),
            )

    def _tp_rules(self, sizes: Mapping[str, int]) -> list[tuple[str, Callable[[int], bool]]]:
        numbers = [*numbers_of_heads(sizes)]
        rules: list[tuple[str, Callable[[int], bool]]] = [
            (f"does not divide the {heads} attention heads", _divides(heads)) for heads, _, _ in numbers
        ]
        rules += [(f"does not divide the feed-forward size {width}", _divides(width)) for width in widths(self, sizes)]
        for _, kv_heads, own in numbers:
            # A fused projection cannot repeat a K/V head, and a kind of layers with its own number of K/V heads does
            # not repeat them.
            if own or self.options.framework.fused_projections == "always":
                rules.append((f"does not divide the {kv_heads} key/value heads", _divides(kv_heads)))
            else:
                repeats = f"neither divides the {kv_heads} key/value heads nor is a multiple of them"
                rules.append((repeats, _divides_or_repeats(kv_heads)))
        for symbol, word in _GROUPED.items():
            if symbol in sizes:
                rules.append((f"does not divide the {sizes[symbol]} {word}", _divides(sizes[symbol])))
        if self.options.framework.vocabulary_multiple is None:
            rules.append((f"does not divide the vocabulary of {sizes['V']}", _divides(sizes["V"])))
            if "VL" in sizes:
                table = f"does not divide the {sizes['VL']} tokens that have rows for each layer"
                rules.append((table, _divides(sizes["VL"])))
        return rules


_GROUPED: Mapping[str, str] = {
    **SCANNED,
    "HP": "pairs of key/value heads of differential attention",
    "QH": "queries of an expert of attention",
}
"""What ranks of tp have whole numbers of, by the symbol of its number."""


def plan_for(words: Mapping[str, object], sizes: Mapping[str, int]) -> Plan:
    """The plan with these words, checked for a model of these sizes. Errors suggest plans that suit the model too."""

    def made(change: Change) -> Plan:
        plan = Plan.from_mapping(with_whole_choices({**words, **change}, sizes, Plan.from_mapping))
        plan.check(sizes)
        return plan

    words = typed_words(words)
    with tried_by(made):
        return made({})


def plan_for_ranks(ranks: int, words: Mapping[str, object]) -> Plan:
    """`Plan.from_mapping`, with dp chosen for a world of `ranks` ranks. words: of the plan, without `ranks`."""
    return Plan.from_mapping({**words, "ranks": ranks})


def _dp_of(ranks: int, words: Mapping[str, Any]) -> int:
    degrees = {name: words.get(name, 1) for name in ("tp", "pp", "cp")}
    for word, number in {**degrees, "dp": words.get("dp")}.items():
        if number is not None:
            LAYOUT_WORDS[word].check(number)
    unit = degrees["tp"] * degrees["pp"] * degrees["cp"]
    text = " x ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1) or "1"
    if ranks < 1 or ranks % unit:
        raise Misfit(
            f"{ranks} ranks are not divisible by {text}{f' = {unit}' if text != str(unit) else ''}",
            multiples("ranks", ranks, unit),
        )
    given = words.get("dp")
    if given is not None and given != ranks // unit:
        raise Misfit(
            f"{ranks} ranks with {text} need dp {ranks // unit}, but the plan has dp {given}",
            ways=[Way({"ranks": given * unit}), Way({"dp": None}, f"leave {Word('dp')} out")],
        )
    return int(ranks // unit)


def _divides_or_repeats(size: int) -> Callable[[int], bool]:
    return lambda degree: size % degree == 0 or degree % size == 0


def _divides(size: int) -> Callable[[int], bool]:
    return lambda degree: size % degree == 0
