"""The choices that change a graph's structure. Degrees, sizes, batches and dtypes do not: they stay symbols."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from stagedb.errors import UsageError
from stagedb.frameworks import Framework, either, find_framework, recipes_with, titles_with
from stagedb.parallel.custom import canonical_strategy, parse_strategy

RecipeName = str
"""A name of `stagedb.frameworks.FRAMEWORKS`."""
CpKind = Literal["none", "allgather-kv", "ring-allgather", "ring-alltoall", "ring-p2p", "ulysses", "ulysses-ring"]
CP_KINDS: tuple[CpKind, ...] = get_args(CpKind)
RINGS: tuple[CpKind, ...] = ("ring-allgather", "ring-alltoall", "ring-p2p", "ulysses-ring")
CpChunks = Literal["none", "balanced", "contiguous"]
CP_CHUNKS: tuple[CpChunks, ...] = get_args(CpChunks)
SHARDED: Mapping[int, str] = {1: "the optimizer", 2: "gradients too", 3: "everything"}
"""What each ZeRO stage shards, as errors name it."""


@dataclass(frozen=True)
class GraphOptions:
    """What, beside the model, makes a symbolic graph.

    recipe: the framework that the graph follows (`stagedb.frameworks`).
    sp: sequence parallelism between the tensor-parallel regions (Korthikanti et al. 2022, section 4.2.2).
    attention: `fused` (one flash-like kernel, the backward recomputes the scores) or `math` (matmuls and a softmax).
    matmul_dtype: what the matmuls of linear layers inside layers read: operands in the `same` format as everything, or
        cast to `fp8` (Micikevicius et al. 2022: e4m3 in the forward, gradients in e5m2).
    dropout: probability; above 0 the graph has dropout operators.
    kernels: `fused` element-wise kernels, or `eager` (one kernel a primitive, as plain autograd runs them).
    shared_input: one gather of a tensor-parallel region's input feeds q, k, v (and gate, up); False redistributes each
        on its own, which is what a tensor-parallel plan without a shared input module does.
    loss_parallel: the cross-entropy works on vocabulary-parallel logits; False gathers the logits first.
    recompute: what the backward of a layer computes again: nothing, the `full` layer, the attention `core` (scores,
        softmax, context; Korthikanti et al. 2022, section 5), all `pointwise` operators (matmuls and fused attention
        are kept: torch's selective checkpointing), or the `operators` that `recompute_operators` names inside the layer
        (`ffn.gate`; `attn` is all of attention), sorted, each once.
    early_stop: recompute only what the backward reads; None is the recipe's habit (torch stops, Megatron does not).
    zero: what data-parallel ranks share among them instead of keeping copies (Rajbhandari et al. 2020): nothing (0),
        the optimizer's state (1), gradients too (2), parameters too (3). In torch 2 and 3 are FSDP2.
    reshard: with zero 3, give gathered parameters back after the forward and gather them again in the backward; None:
        yes. Without it they stay together until the backward is through, as with zero 2.
    strategy: a sharding strategy of the user's, as the text of `stagedb.parallel.custom` (empty: none).
    scatter_gather: of what ranks of tp hold alike each sends its part to the next stage, which gathers the parts over
        tp (Narayanan et al. 2021, section 4.1); False: each sends the whole.
    expert_tp: tensor parallelism partitions each expert, too; False: experts are whole, and under sp their ranks are
        those of tp, too (`experts_over_tp`).
    ep_sync: gradients of what all ranks of ep hold alike are reduced over it; False leaves that out (a measurement of
        expert parallelism alone: copies drift apart).
    grad_sync: reduce gradients over dp after each micro-batch, or only after the last; None is the recipe's habit.
    cp_kind: how the ranks of cp, each with a part of the sequence, compute attention: not at all (`none`: cp is 1),
        with keys and values gathered (`allgather-kv`), in turns with those of each rank, which are gathered once
        (`ring-allgather`) or go from rank to rank (`ring-alltoall`: torch's rings; `ring-p2p`: Transformer Engine's, by
        sends and receives), with the whole sequence of some heads each (`ulysses`), or with the sequence of some
        neighbours for some heads, in a ring over the rest (`ulysses-ring`: Transformer Engine's `a2a+p2p`; Fang and
        Zhao 2024).
    cp_chunks: which part of the sequence a rank has: a chunk from the front and its counterpart from the back, so that
        causal work is alike (`balanced`), or one part (`contiguous`; torch's `enable_load_balance=False`), under which
        late ranks compute more. `none` is what the kind has: balanced, but for ulysses, for torch's gathered keys,
        which are read under an explicit mask, and for `attention` in matmuls.
    cp_grad_sync: gradients are reduced over dp and cp together; False leaves cp out, as a step does that computes
        gradients alone.
    """

    recipe: RecipeName = "torch"
    sp: bool = False
    attention: Literal["fused", "math"] = "fused"
    matmul_dtype: Literal["same", "fp8"] = "same"
    dropout: float = 0.0
    kernels: Literal["fused", "eager"] = "fused"
    shared_input: bool = True
    loss_parallel: bool = True
    recompute: Literal["none", "full", "core", "pointwise", "operators"] = "none"
    recompute_operators: tuple[str, ...] = ()
    early_stop: bool | None = None
    zero: int = 0
    reshard: bool | None = None
    grad_sync: bool | None = None
    cp_kind: CpKind = "none"
    cp_chunks: CpChunks = "none"
    cp_grad_sync: bool = True
    strategy: str = ""
    expert_tp: bool = True
    ep_sync: bool = True
    scatter_gather: bool = False

    def __post_init__(self) -> None:
        # The same rules said in other words are the same graph.
        object.__setattr__(self, "strategy", canonical_strategy(self.strategy))
        find_framework(self.recipe)
        if self.attention not in ("fused", "math"):
            raise UsageError(f"unknown attention {self.attention!r}: --attention is fused or math")
        if self.kernels not in ("fused", "eager"):
            raise UsageError(f"unknown kernels {self.kernels!r}: --kernels is fused or eager")
        if self.matmul_dtype not in ("same", "fp8"):
            raise UsageError(
                f"unknown format of matmuls {self.matmul_dtype!r}: --matmul-dtype is same (as --dtype) or fp8"
            )
        self._check_recompute()
        self._check_sharding()
        self._check_messages()
        if self.cp_kind not in CP_KINDS:
            raise UsageError(
                f"unknown kind of context parallelism {self.cp_kind!r}: --cp-kind is {', '.join(CP_KINDS)}"
            )
        self._check_context()
        if not self.cp_grad_sync and self.zero:
            raise UsageError(
                f"zero {self.zero} shares over dp and cp what belongs to gradients: --no-cp-grad-sync needs --zero 0"
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout {self.dropout} is not a probability: --dropout takes a number from 0 to below 1")
        if self.framework.fused_projections == "always" and not self.shared_input:
            raise UsageError(
                f"the {self.recipe} recipe has one fused matmul for q, k, v: --no-shared-input needs "
                f"{recipes_with(lambda other: other.fused_projections != 'always')}"
            )

    @property
    def framework(self) -> Framework:
        """The framework that the recipe names."""
        return find_framework(self.recipe)

    @property
    def experts_over_tp(self) -> bool:
        """Whether experts see the ranks of tp, which sp gives tokens of their own, as they see those of dp and cp."""
        return self.sp and not self.expert_tp

    @property
    def resharded(self) -> bool:
        """Whether parameters are given back after the forward."""
        return self.zero == 3 and self.reshard is not False

    def _check_context(self) -> None:
        kind = self.cp_kind
        if kind in RINGS and self.attention == "math":
            raise UsageError(f"{kind} is made of fused kernels: --attention math needs --cp-kind allgather-kv")
        kinds = self.framework.cp_kinds
        if kind != "none" and kind not in kinds:
            raise UsageError(
                f"{kind} is {titles_with(lambda other: kind in other.cp_kinds)}'s: --recipe {self.recipe} takes "
                f"--cp-kind {either(kinds)}"
            )
        if self.cp_chunks not in CP_CHUNKS:
            raise UsageError(f"unknown chunks {self.cp_chunks!r}: --cp-chunks is balanced or contiguous")
        if kind == "none":
            return  # the plan has still to say which
        free = kind in RINGS or self.calls_by_part
        if self.cp_chunks == "none":
            object.__setattr__(self, "cp_chunks", "balanced" if free else "contiguous")
        elif self.cp_chunks == "balanced" and not free:
            reason = (
                "each rank has the whole sequence of its heads"
                if kind == "ulysses"
                else "one mask goes over all gathered keys"
            )
            # Another framework balances gathered keys only where its fused kernel needs no mask.
            masked = kind != "ulysses" and self.attention == "fused"
            near = f", or {recipes_with(lambda other: not other.explicit_mask)}" if masked else ""
            raise UsageError(
                f"with {kind} {reason}, so that chunks balance nothing: take --cp-chunks contiguous{near}, "
                "or leave --cp-chunks out"
            )

    @property
    def calls_by_part(self) -> bool:
        """Whether gathered keys are read by a call for each part of a rank's queries, up to its end."""
        return self.cp_kind == "allgather-kv" and not self.framework.explicit_mask and self.attention == "fused"

    def _check_recompute(self) -> None:
        if self.recompute not in ("none", "full", "core", "pointwise", "operators"):
            raise UsageError(
                f"unknown recompute {self.recompute!r}: --recompute is none, full, core, pointwise or operators"
            )
        if self.recompute == "core" and self.attention == "fused":
            raise UsageError(
                "the fused attention kernel recomputes its core already: --recompute core needs --attention math"
            )
        if self.recompute == "none":
            object.__setattr__(self, "early_stop", None)  # there is nothing to stop
        # The same operators said in another order are the same graph.
        object.__setattr__(self, "recompute_operators", tuple(sorted(set(self.recompute_operators))))
        if self.recompute == "operators" and not self.recompute_operators:
            raise UsageError(
                "which operators are to be recomputed is not said: --recompute operators needs --recompute-operators, "
                "such as attn_norm,ffn.gate"
            )
        if self.recompute_operators and self.recompute != "operators":
            raise UsageError(
                f"--recompute {self.recompute} says what is recomputed: --recompute-operators needs "
                "--recompute operators"
            )

    def _check_sharding(self) -> None:
        if self.zero not in (0, 1, 2, 3):
            raise UsageError(f"unknown ZeRO stage {self.zero}: --zero is 0, 1, 2 or 3")
        stages = self.framework.zero_stages
        if self.zero not in stages:
            shards = [f"{SHARDED[stage]} (--zero {stage})" for stage in stages if stage in SHARDED]
            raise UsageError(
                f"{self.framework.title} shards {either(shards or ['nothing'])}: --zero {self.zero} needs "
                f"{recipes_with(lambda other: self.zero in other.zero_stages)}"
            )
        if self.reshard is not None and self.zero != 3:
            raise UsageError(
                f"only zero 3 gives parameters back after the forward: --{'' if self.reshard else 'no-'}reshard needs "
                f"--zero 3, not {self.zero}"
            )
        if not self.ep_sync and self.zero:
            raise UsageError(f"zero {self.zero} shares gradients over all of dp: --no-ep-sync needs --zero 0")
        if not self.ep_sync and self.strategy:
            raise UsageError(
                "a strategy has gradients that are reduced over dp or cp alone, which hold the ranks of ep: leave "
                "--no-ep-sync out, or --strategy"
            )
        if self.grad_sync and self.zero == 1:
            raise UsageError(
                "with zero 1 gradients are reduced once a step: --grad-sync needs --zero 0, 2 or 3, or leave it out"
            )

    def _check_messages(self) -> None:
        if not self.scatter_gather:
            return
        if not self.framework.scatter_gather:
            raise UsageError(
                f"scattered messages between stages are {titles_with(lambda other: other.scatter_gather)}'s: "
                f"--scatter-gather needs {recipes_with(lambda other: other.scatter_gather)}, or leave it out"
            )
        between = parse_strategy(self.strategy).regions.get("between", {}) if self.strategy else {}
        if self.sp or any("tp" in over for over in between.values()):
            raise UsageError(
                f"with {'sp' if self.sp else 'this strategy'} each rank of tp has only its part of what goes to the "
                f"next stage: take {'--no-sp' if self.sp else 'a strategy that leaves tp out between regions'}, "
                "or leave --scatter-gather out"
            )

    def to_dict(self) -> dict[str, object]:
        """The options as plain values, for digests and for the store, without what `UNSAID` says already."""
        said = {**dataclasses.asdict(self), "recompute_operators": list(self.recompute_operators)}
        return {word: value for word, value in said.items() if word not in UNSAID or value != UNSAID[word]}


UNSAID: Mapping[str, object] = {"scatter_gather": False}
"""Options that are younger than the stored form, as graphs from before them are: these keep their ids."""
