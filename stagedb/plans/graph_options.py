"""The choices that change the structure of a graph. Degrees, sizes, batches and dtypes remain symbols."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.frameworks import Framework, either, find_framework, recipes_with, titles_with
from stagedb.mentions import Word, one_of
from stagedb.models.adapters import ALIASES
from stagedb.plans.aspects import GRAPH_WORDS, GraphAspects, chosen_words, plain_words
from stagedb.plans.aspects.context import CpChunks, CpKind
from stagedb.plans.aspects.recompute import RECOMPUTE_MODULES
from stagedb.plans.aspects.word import PlanWord
from stagedb.plans.strategy_files import canonical_strategy, parse_strategy
from stagedb.workflows import WORKFLOWS, Workflow, find_workflow

__all__ = ["CP_CHUNKS", "CP_KINDS", "RINGS", "CpChunks", "CpKind", "GraphOptions"]

# Words of a plan that mean nothing to its workflow: those of gradients and of an optimizer that it does not have.


def check_needed(workflow: Workflow, words: Iterable[PlanWord], values: object, usual: Mapping[str, Any]) -> None:
    """Raise UsageError for a word with another value than the usual one, by field, that the workflow cannot use.

    words: those to check. values: an object with a field for each word. usual: by field, the value that any workflow
    may have; a field that is left out has its default.
    """
    for word in words:
        value, needs = getattr(values, word.field), word.about.needs
        if value != usual.get(word.field, word.default) and not _has(workflow, needs):
            raise UsageError(
                f"the workflow {workflow.name} has no {needs}, which {word.switch(value)} is for: leave it out, or "
                f"take {workflows_with(needs)}"
            )


def workflows_with(needs: str) -> str:
    """The workflows that have what a word of a plan needs, as options of a message."""
    return " or ".join(str(Word("workflow", name)) for name, workflow in WORKFLOWS.items() if _has(workflow, needs))


def _has(workflow: Workflow, needs: str) -> bool:
    has = {
        "gradients": workflow.differentiates,
        "optimizer": workflow.optimizes,
        "cache": workflow.caches,
        "draft": workflow.drafts,
    }
    return has.get(needs, True)


DEALT_KEYS: CpKind = "allgather-lse"
"""The kind in which ranks of cp share the cache of each request."""
CP_KINDS: tuple[CpKind, ...] = tuple(kind for kind in get_args(CpKind) if kind != DEALT_KEYS)
"""The kinds in which ranks of cp have parts of a sequence, and `none`."""
RINGS: tuple[CpKind, ...] = ("ring-allgather", "ring-alltoall", "ring-p2p", "ulysses-ring")
CP_CHUNKS: tuple[CpChunks, ...] = get_args(CpChunks)
MOST_PARTS = 512
"""The most parts of a loss. Each is operators of its own, some twenty of them."""
MUONS = ("muon", "dist-muon")
"""Optimizers that update matrices of layers by Muon, and other weights by AdamW."""
PYTORCH_OPTIMIZERS = ("adamw-8bit", "adamw-8bit-ao", "adafactor")
"""Optimizers of PyTorch, or of its libraries, that update each weight by states of another shape or format."""
OF_PARTS = ("adamw-8bit-ao",)
"""Those of them that take the part of a weight that a rank of FSDP2 has."""
SHARDED: Mapping[int, str] = {1: "the optimizer", 2: "gradients too", 3: "everything"}
"""What each ZeRO stage shards, as errors name it."""


@dataclass(frozen=True)
class GraphOptions(GraphAspects):
    """The choices that make a symbolic graph from a model. `stagedb.plans.aspects` explains each word.

    Raises UsageError for values that no graph can combine.
    """

    def __post_init__(self) -> None:
        # The same rules in another notation make the same graph.
        object.__setattr__(self, "strategy", canonical_strategy(self.strategy))
        find_framework(self.recipe)
        for word in GRAPH_WORDS.values():
            word.check(getattr(self, word.field))
        self._check_recompute()
        self._check_trained()
        self._settle_muon()
        self._check_own_optimizer()
        self._check_offload()
        self._settle_latents()
        self._check_workflow()
        self._check_weights()
        self._check_sharding()
        self._check_messages()
        self._check_clipping()
        self._check_loss()
        self._check_context()
        if not self.cp_grad_sync and self.zero:
            raise UsageError(
                f"zero {self.zero} shards state over dp and cp together: {Word('cp_grad_sync', False)} needs "
                f"{Word('zero', 0)}"
            )
        if not 0 <= self.dropout < 1:
            raise UsageError(
                f"dropout {self.dropout} is not a probability: {Word('dropout')} takes a number from 0 to below 1"
            )
        if self.framework.fused_projections == "always" and not self.shared_input:
            raise UsageError(
                f"the {self.recipe} recipe has one fused matmul for q, k, v: {Word('shared_input', False)} needs "
                f"{recipes_with(lambda other: other.fused_projections != 'always')}"
            )

    @property
    def framework(self) -> Framework:
        """The framework that the recipe names."""
        return find_framework(self.recipe)

    @property
    def experts_over_tp(self) -> bool:
        """Whether experts are spread over the ranks of tp too: with sp these ranks have tokens of their own."""
        return self.sp and not self.expert_tp

    @property
    def experts_of_tp(self) -> bool:
        """Whether each rank of tp has other whole experts for the same tokens, so that tp sums up the results."""
        return not self.sp and not self.expert_tp and self.dispatch == "copies"

    @property
    def routes_whole(self) -> bool:
        """Whether the ranks of tp route the same tokens to experts that they hold parts of."""
        return self.expert_tp and self.framework.routes_whole

    @property
    def resharded(self) -> bool:
        """Whether gathered parameters are freed after the forward."""
        return self.zero == 3 and self.reshard is not False

    @property
    def gathers_for_muon(self) -> bool:
        """Whether Muon gathers matrices that ranks of tp partition."""
        chosen = self.framework.muon_tp if self.muon_tp == "usual" else self.muon_tp
        return self.optimizer in MUONS and chosen != "blockwise"

    @property
    def owns_layers(self) -> bool:
        """Whether each weight is updated by one rank of dp, which the others get it from."""
        return self.optimizer == "dist-muon"

    @property
    def absorbs(self) -> bool:
        """Whether attention reads latents from the cache directly, in place of keys and values made of them."""
        usual = find_workflow(self.workflow).decodes and self.attention == "fused"
        return usual if self.latents == "usual" else self.latents == "absorbed"

    def _settle_muon(self) -> None:
        """One word for the same graph. Raises UsageError for what Muon cannot be combined with."""
        if self.optimizer not in MUONS:
            if self.muon_tp != "usual":
                raise UsageError(
                    f"{self.optimizer} updates each number of a weight alone: {Word('muon_tp', self.muon_tp)} needs "
                    f"{Word('optimizer', 'muon')}, or leave it out"
                )
            return
        if self.muon_tp == self.framework.muon_tp:
            object.__setattr__(self, "muon_tp", "usual")
        optimizer = Word("optimizer", self.optimizer)
        if self.owns_layers and not self.framework.owns_layers:
            raise UsageError(
                f"{self.framework.title} has no Muon whose weights are each updated by one rank of dp: {optimizer} "
                f"needs {recipes_with(lambda other: other.owns_layers)}, or take {Word('optimizer', 'muon')}"
            )
        if self.zero:
            spread = self.framework.owns_layers and not self.owns_layers
            own = f"; {Word('optimizer', 'dist-muon')} leaves each weight to one rank of dp" if spread else ""
            raise UsageError(
                f"Muon needs whole matrices, and zero {self.zero} shards {SHARDED[self.zero]} over dp: "
                f"{optimizer} needs {Word('zero', 0)}{own}"
            )
        for word in ("cp_grad_sync", "ep_sync"):
            if self.owns_layers and not getattr(self, word):
                raise UsageError(
                    f"{optimizer} leaves each weight to one of the ranks that have its whole gradient: "
                    f"{Word(word, False)} needs {Word('optimizer', 'muon')}"
                )

    def _check_own_optimizer(self) -> None:
        """Raise UsageError for an optimizer of PyTorch's where another framework, or ZeRO, needs one of its own."""
        if self.optimizer not in PYTORCH_OPTIMIZERS:
            return
        optimizer = Word("optimizer", self.optimizer)
        if not self.framework.any_optimizer:
            raise UsageError(
                f"{self.framework.title} has no {self.optimizer}: {optimizer} needs "
                f"{recipes_with(lambda other: other.any_optimizer)}, or take {Word('optimizer', 'adamw')}"
            )
        if self.zero and not (self.optimizer in OF_PARTS and self.zero >= 2):
            also = f", or {one_of('zero', ('2', '3'))}" if self.optimizer in OF_PARTS else ""
            raise UsageError(
                f"{self.optimizer} has states of whole weights, and zero {self.zero} shards {SHARDED[self.zero]} over "
                f"dp: {optimizer} needs {Word('zero', 0)}{also}"
            )

    def _check_offload(self) -> None:
        """Raise UsageError for what no framework keeps on the host."""
        if self.offload == "none":
            return
        offload, has = Word("offload", self.offload), f"{self.framework.title} keeps"
        if self.offload not in self.framework.offloads:
            raise UsageError(
                f"{self.offload} on the host, with copies in the order of kernels, exist only in "
                f"{titles_with(lambda other: self.offload in other.offloads)}: {offload} needs "
                f"{recipes_with(lambda other: self.offload in other.offloads)}, or leave it out"
            )
        if self.offload == "activations":
            if self.recompute != "full":
                raise UsageError(
                    f"{has} nothing but inputs of layers on the host: {offload} needs {Word('recompute', 'full')}"
                )
            return
        if self.optimizer != "adamw":
            raise UsageError(f"{has} states of AdamW on the host: {offload} needs {Word('optimizer', 'adamw')}")
        if self.zero != 1:
            raise UsageError(
                f"{has} states of its distributed optimizer on the host: {offload} needs {Word('zero', 1)}, not "
                f"{self.zero}"
            )

    def _settle_latents(self) -> None:
        """One word for the same graph. Raises UsageError for latents that nothing can absorb."""
        if self.latents == "absorbed" and not find_workflow(self.workflow).caches:
            raise UsageError(
                f"in the workflow {self.workflow} keys are made of the latents of all positions: "
                f"{Word('latents', 'absorbed')} is for {workflows_with('cache')}"
            )
        if self.latents == "absorbed" and self.attention != "fused":
            raise UsageError(
                f"queries read latents in one kernel: {Word('latents', 'absorbed')} needs {Word('attention', 'fused')}"
            )
        own = self.absorbs
        object.__setattr__(self, "latents", "usual")
        if self.absorbs is not own:
            object.__setattr__(self, "latents", "absorbed" if own else "expanded")

    def _check_workflow(self) -> None:
        workflow = find_workflow(self.workflow)
        check_needed(workflow, GRAPH_WORDS.values(), self, {})
        if workflow.differentiates or self.zero in (0, 3):
            return
        whole = " or ".join(str(Word("zero", stage)) for stage in self.framework.zero_stages if stage in (0, 3))
        raise UsageError(
            f"the workflow {workflow.name} has no backward, and zero {self.zero} shards {SHARDED[self.zero]}, which it "
            f"does not have: take {whole}, or {workflows_with('gradients')}"
        )

    def _check_weights(self) -> None:
        """Raise UsageError for stored weights of 4 bits where something updates or shards them."""
        if self.weight_dtype == "same":
            return
        word = Word("weight_dtype", self.weight_dtype)
        if not find_workflow(self.workflow).caches:
            raise UsageError(
                f"weights of 4 bits are made after training, for serving: {word} needs {workflows_with('cache')}; "
                f"training and its forward have weights in {Word('param_dtype', 'bf16')}, or matmuls in "
                f"{Word('matmul_dtype', 'fp8')}"
            )
        if self.matmul_dtype != "same":
            raise UsageError(
                f"a matmul in {self.matmul_dtype} reads weights in {self.matmul_dtype}, and one with weights of 4 bits "
                f"computes in the format of activations: take {Word('matmul_dtype', 'same')}, or "
                f"{Word('weight_dtype', 'same')}"
            )
        if self.zero:
            raise UsageError(
                f"engines shard no groups of weights over dp: {word} needs {Word('zero', 0)}, not {self.zero}"
            )

    def _check_context(self) -> None:
        kind = self.cp_kind
        if kind == DEALT_KEYS or (kind != "none" and find_workflow(self.workflow).caches):
            self._check_dealt_keys()
            return
        if kind in RINGS and self.attention == "math":
            raise UsageError(
                f"{kind} is made of fused kernels: {Word('attention', 'math')} needs {Word('cp_kind', 'allgather-kv')}"
            )
        kinds = self.framework.cp_kinds
        if kind != "none" and kind not in kinds:
            raise UsageError(
                f"{kind} exists only in {titles_with(lambda other: kind in other.cp_kinds)}: "
                f"{Word('recipe', self.recipe)} takes {one_of('cp_kind', kinds)}"
            )
        if kind == "none":
            return  # the plan sets the framework's kind, if its cp is above 1
        free = kind in RINGS or self.calls_by_part
        if self.cp_chunks == "none":
            object.__setattr__(self, "cp_chunks", "balanced" if free else "contiguous")
        elif self.cp_chunks == "balanced" and not free:
            reason = (
                "each rank has the whole sequence of its heads"
                if kind == "ulysses"
                else "one mask goes over all gathered keys"
            )
            # Another framework balances gathered keys only if its fused kernel needs no mask.
            masked = kind != "ulysses" and self.attention == "fused"
            near = f", or {recipes_with(lambda other: not other.explicit_mask)}" if masked else ""
            raise UsageError(
                f"with {kind} {reason}, so that chunks balance nothing: take {Word('cp_chunks', 'contiguous')}{near}, "
                f"or leave {Word('cp_chunks')} out"
            )

    def _check_dealt_keys(self) -> None:
        """Raise UsageError where ranks of cp cannot share a cache."""
        if not find_workflow(self.workflow).caches:
            raise UsageError(
                f"{self.cp_kind} shares the cache of each request: {Word('cp_kind', self.cp_kind)} needs "
                f"{workflows_with('cache')}"
            )
        if self.cp_kind != DEALT_KEYS:
            raise UsageError(
                f"{self.cp_kind} divides a sequence, and with a cache the ranks of cp share its positions: "
                f"{self.workflow} takes {Word('cp_kind', DEALT_KEYS)}, or leave {Word('cp_kind')} out"
            )
        if self.attention != "fused":
            raise UsageError(
                f"{DEALT_KEYS} adds up results of a kernel that gives its log-sum-exp: it needs "
                f"{Word('attention', 'fused')}"
            )
        if self.cp_chunks != "none":
            raise UsageError(
                f"with {DEALT_KEYS} each rank has every cp-th position of the cache: leave {Word('cp_chunks')} out"
            )
        if self.strategy:
            raise UsageError(
                f"{DEALT_KEYS} has layouts of its own for caches, which a strategy of yours does not have: leave "
                f"{Word('strategy')} or {Word('cp')} out"
            )

    @property
    def calls_by_part(self) -> bool:
        """Whether each part of a rank's queries has a kernel call of its own, which reads keys up to the part's end."""
        return self.cp_kind == "allgather-kv" and not self.framework.explicit_mask and self.attention == "fused"

    def _check_recompute(self) -> None:
        if self.recompute == "core" and self.attention == "fused":
            raise UsageError(
                f"the fused attention kernel recomputes its core already: {Word('recompute', 'core')} needs "
                f"{Word('attention', 'math')}"
            )
        if self.recompute == "none":
            object.__setattr__(self, "early_stop", None)  # without recomputation nothing can stop early
        # The order of the names does not change the graph.
        for named in ("recompute_operators", "recompute_modules"):
            object.__setattr__(self, named, tuple(sorted(set(getattr(self, named)))))
        for kind, like in (("operators", "attn_norm,ffn.gate"), ("modules", "layernorm")):
            chosen = getattr(self, f"recompute_{kind}")
            if self.recompute == kind and not chosen:
                raise UsageError(
                    f"{Word('recompute', kind)} needs the names: add {Word(f'recompute_{kind}')}, such as {like}"
                )
            if chosen and self.recompute != kind:
                raise UsageError(
                    f"{Word('recompute', self.recompute)} already names what is recomputed: "
                    f"{Word(f'recompute_{kind}')} needs {Word('recompute', kind)}"
                )
        self._check_modules()

    def _check_modules(self) -> None:
        """The modules are Megatron-Core's, by its names."""
        unknown = [name for name in self.recompute_modules if name not in RECOMPUTE_MODULES]
        if unknown:
            raise UsageError(
                f"unknown module {shown(unknown[0])}: {Word('recompute_modules')} takes {', '.join(RECOMPUTE_MODULES)}"
            )
        if self.recompute_modules and not self.framework.recomputes_modules:
            raise UsageError(
                f"{self.framework.title} has no modules of Megatron-Core: {Word('recompute', 'modules')} needs "
                f"{recipes_with(lambda other: other.recomputes_modules)}, or take {Word('recompute', 'operators')}"
            )
        if "core_attn" in self.recompute_modules and self.attention == "fused":
            raise UsageError(
                "the fused attention kernel recomputes its core already: leave core_attn out of "
                f"{Word('recompute_modules')}, or take {Word('attention', 'math')}"
            )

    def _check_sharding(self) -> None:
        stages = self.framework.zero_stages
        if self.zero not in stages:
            shards = [f"{SHARDED[stage]} ({Word('zero', stage)})" for stage in stages if stage in SHARDED]
            raise UsageError(
                f"{self.framework.title} shards {either(shards or ['nothing'])}: {Word('zero', self.zero)} needs "
                f"{recipes_with(lambda other: self.zero in other.zero_stages)}"
            )
        if self.reshard is not None and self.zero != 3:
            raise UsageError(
                f"only zero 3 frees parameters after the forward: {Word('reshard', self.reshard)} needs "
                f"{Word('zero', 3)}, not {self.zero}"
            )
        self._check_parts()
        self._check_units()
        self._check_version()
        if not self.ep_sync and self.zero:
            raise UsageError(
                f"zero {self.zero} shards gradients over all ranks of dp: {Word('ep_sync', False)} needs "
                f"{Word('zero', 0)}"
            )
        if self.grad_sync and self.zero == 1:
            raise UsageError(
                f"with zero 1 gradients are reduced once a step: {Word('grad_sync', True)} needs {Word('zero', 0)}, 2 "
                "or 3, or leave it out"
            )

    def _check_parts(self) -> None:
        """What `reshard_to` needs."""
        if self.reshard_to is None:
            return
        if not self.framework.reshards_to:
            raise UsageError(
                f"parts of parameters for the backward exist only in {titles_with(lambda other: other.reshards_to)}: "
                f"{Word('reshard_to')} needs {recipes_with(lambda other: other.reshards_to)}, or leave it out"
            )
        if not self.resharded:
            found = str(Word("reshard", False)) if self.zero == 3 else f"zero {self.zero}"
            raise UsageError(
                f"{found} frees no parameters after the forward: {Word('reshard_to')} needs {Word('zero', 3)} without "
                f"{Word('reshard', False)}"
            )

    def _check_units(self) -> None:
        """What `expert_unit` needs."""
        if not self.expert_unit:
            return
        if not self.framework.expert_units:
            raise UsageError(
                f"units of experts exist only in {titles_with(lambda other: other.expert_units)}: "
                f"{Word('expert_unit', True)} needs {recipes_with(lambda other: other.expert_units)}, or leave it out"
            )
        if self.zero < 2:
            raise UsageError(
                f"zero {self.zero} has no units: {Word('expert_unit', True)} needs {Word('zero', 2)} or 3, or leave "
                "it out"
            )
        if self.resharded and self.recompute in ("pointwise", "operators"):
            raise UsageError(
                f"with {Word('recompute', self.recompute)} the backward runs the gather of the last layer's experts "
                f"again, which selective checkpoints of {self.framework.title} do not find and refuse: "
                f"{Word('expert_unit', True)} needs {Word('zero', 2)}, {Word('reshard', False)} or "
                f"{Word('recompute', 'full')}"
            )

    def _check_version(self) -> None:
        """What `fsdp_version` 1 needs."""
        if self.fsdp_version != 1:
            return
        if not self.framework.has_fsdp1:
            raise UsageError(
                f"FullyShardedDataParallel exists only in {titles_with(lambda other: other.has_fsdp1)}: "
                f"{Word('fsdp_version', 1)} needs {recipes_with(lambda other: other.has_fsdp1)}, or leave it out"
            )
        if self.zero < 2:
            raise UsageError(
                f"zero {self.zero} has no units: {Word('fsdp_version', 1)} needs {Word('zero', 2)} or 3, or leave it "
                "out"
            )
        for word, value in (("reshard_to", self.reshard_to), ("expert_unit", self.expert_unit or None)):
            if value is not None:
                raise UsageError(
                    f"FullyShardedDataParallel has no {Word(word, value)}: it needs {Word('fsdp_version', 2)}, or "
                    "leave it out"
                )

    def _check_clipping(self) -> None:
        if self.clip_norm and not self.framework.clips:
            raise UsageError(
                f"the {self.recipe} recipe has no clipping of gradients: {Word('clip_norm', True)} needs "
                f"{recipes_with(lambda other: other.clips)}, or leave it out"
            )

    def _check_loss(self) -> None:
        if self.loss_chunks > MOST_PARTS:
            raise UsageError(
                f"{shown(self.loss_chunks)} parts of a loss are too many: {Word('loss_chunks')} takes at most "
                f"{MOST_PARTS}"
            )
        if self.loss_chunks > 1 and not self.framework.chunks_loss:
            raise UsageError(
                f"{self.framework.title} makes the logits of all tokens at once: "
                f"{Word('loss_chunks', self.loss_chunks)} needs {recipes_with(lambda other: other.chunks_loss)}, or "
                "leave it out"
            )

    def _check_trained(self) -> None:
        """One word for the same weights. Raises UsageError for adapters and frozen parts together."""
        targets = {ALIASES.get(name, name) for name in self.lora}
        object.__setattr__(self, "lora", tuple(sorted(targets)))
        object.__setattr__(self, "frozen", tuple(sorted(set(self.frozen))))
        if self.lora and self.frozen:
            raise UsageError(
                f"with {Word('lora')} all weights but those of adapters are frozen: leave {Word('frozen')} out"
            )

    def _check_messages(self) -> None:
        if not self.scatter_gather:
            return
        if not self.framework.scatter_gather:
            raise UsageError(
                f"scattered messages exist only in {titles_with(lambda other: other.scatter_gather)}: "
                f"{Word('scatter_gather', True)} needs {recipes_with(lambda other: other.scatter_gather)}, or leave "
                "it out"
            )
        between = parse_strategy(self.strategy).regions.get("between", {}) if self.strategy else {}
        if self.sp or any("tp" in over for over in between.values()):
            way = Word("sp", False) if self.sp else "a strategy that leaves tp out between regions"
            raise UsageError(
                f"with {'sp' if self.sp else 'this strategy'} each rank of tp only has its part of the tensor for the "
                f"next stage: take {way}, or leave {Word('scatter_gather', True)} out"
            )

    def to_dict(self) -> dict[str, object]:
        """The options as plain values, for the store."""
        return plain_words(GRAPH_WORDS, self)

    @property
    def chosen(self) -> dict[str, object]:
        """The options that have another value than their default, for ids: a new option changes none."""
        return chosen_words(GRAPH_WORDS, self.to_dict())
