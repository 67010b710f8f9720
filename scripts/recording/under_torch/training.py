"""One training step of one rank: made, run twice on shape-only tensors, and the second time recorded."""

import contextlib
import gc
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from scripts.recording.steps import Step
from scripts.recording.under_torch.chunked_loss import loss_in_parts
from scripts.recording.under_torch.context import ContextAttention
from scripts.recording.under_torch.model import Context, Model, Tables, loss_of
from scripts.recording.under_torch.observer import Observer, local
from scripts.recording.under_torch.optimizers import optimizers, state_of
from scripts.recording.under_torch.parallel import Ranks, parallel
from scripts.recording.under_torch.saving import Saved
from scripts.recording.under_torch.trained import trained

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
_aten = torch.ops.aten
_KEPT = (
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
)


class Job:
    """A rank's model, inputs and optimizer for a configuration. They live in `fake`, and `observer` follows them."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.config = config
        self.ranks = Ranks(config)
        self.observer = Observer(self.ranks.names, seen(config, self.ranks.place("cp")))
        self.saved = Saved(self.observer)
        self.dtype = DTYPES[config["dtype"]] if config["mixed"] == "none" else torch.float32

    def build(self) -> None:
        """Make tables, inputs, model and optimizer."""
        config = self.config
        self.tables = self.made_tables()
        self.context = Context(config, self.tables, partial(recomputing, config, self.observer))
        if config["cp"] > 1:
            self.context.attention = ContextAttention(config["cp_impl"], self.ranks["cp"], self.tables.mask)
        if config["ep"] > 1:
            self.context.expert_group = self.ranks["ep"].get_group()
        shape = (config["batch"], config["seq"] // config["cp"])
        count = config["microbatches"]
        self.tokens, self.labels = ([torch.zeros(shape, dtype=torch.int64) for _ in range(count)] for _ in range(2))
        self.models = self.made()
        for model in self.models:
            self.saved.watch(model)
        self.modules = [parallel(config, self.ranks, model) for model in self.models]
        self.optimizers = optimizers(config["optimizer"], self.models)

    def made_tables(self) -> Tables:
        """The tensors that are no weights."""
        return tables(self.config)

    def made(self) -> list[Model]:
        """The chunks of the model that this rank has."""
        self.whole = 0
        with default(self.dtype):
            model = trained(Model(self.context, range(self.config["layers"]), True, True), self.config)
        self.whole += sum(each.numel() for each in model.parameters())
        return [model]

    def parameters(self) -> list[nn.Parameter]:
        """All weights of this rank."""
        return [each for model in self.models for each in model.parameters()]

    def step(self) -> torch.Tensor | None:
        """One step: forward, backward and optimizer of all micro-batches. Returns the last loss."""
        observer, last = self.observer, self.config["microbatches"] - 1
        for place, (tokens, labels) in enumerate(zip(self.tokens, self.labels, strict=True)):
            with self.synchronised(place == last):
                loss = self.microbatch(tokens, labels, place == 0)
        self.mark("backward_end")
        self.update()
        self.mark("optimizer_end")
        observer.phase = "forward"
        return loss

    def microbatch(self, tokens: torch.Tensor, labels: torch.Tensor, first: bool) -> torch.Tensor:
        """Forward and backward of one micro-batch."""
        config, observer = self.config, self.observer
        distributed = config["tp"] > 1 and config["loss_parallel"]
        with loss_parallel() if distributed else contextlib.nullcontext():
            observer.phase = "forward"
            with self.saved if first else contextlib.nullcontext():
                loss = self.loss(tokens, labels)
            if config["microbatches"] == 1:
                self.mark("forward_end")
            observer.phase = "backward"
            loss.backward()
        return loss

    def loss(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of the whole model."""
        return self.made_of(self.modules[0](tokens), labels)

    def made_of(self, result: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of what the last chunk returns: logits, or the head's input for a loss in parts."""
        count, whole = self.config["loss_chunks"], not self.config["loss_parallel"]
        if count == 1:
            return loss_of(result, labels)
        return loss_in_parts(result, self.models[-1].head, labels, count, whole)

    @contextlib.contextmanager
    def synchronised(self, last: bool) -> Iterator[None]:
        """Gradients are reduced after the last micro-batch only, or after each."""
        now = last or self.config.get("accumulate") == "every"
        for module in self.modules:
            if self.config["dp_kind"] == "fsdp":
                module.set_requires_gradient_sync(now)
        with contextlib.ExitStack() as stack:
            for module in self.modules:
                if isinstance(module, DistributedDataParallel) and not now:
                    stack.enter_context(module.no_sync())
            yield

    def update(self) -> None:
        """The optimizer's part of a step."""
        self.observer.phase = "optimizer"
        if self.config.get("clip"):
            self.clip()
        for optimizer in self.optimizers:
            optimizer.step()
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def clip(self) -> None:
        """Scale the gradients by the norm of all of them: over stages, its powers are added, as torchtitan does."""
        if self.config["pp"] == 1:
            torch.nn.utils.clip_grad_norm_(self.parameters(), 1.0, foreach=True)
            return
        gradients = [each.grad for each in self.parameters() if each.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        norm **= 2
        dist.all_reduce(norm, group=self.ranks["pp"].get_group())
        norm **= 0.5
        torch.nn.utils.clip_grads_with_norm_(self.parameters(), 1.0, norm, foreach=True)

    def mark(self, name: str) -> None:
        """A moment of the recorded step, with the gradients that are there."""
        step = self.observer.step
        if step is None:
            return
        step.mark(name)
        if name == "forward_end":
            for tensor in unsharded(self.models):
                self.observer.storage(tensor).category = "fsdp_unsharded_param"
        if name == "backward_end":
            for parameter in self.parameters():
                if parameter.grad is not None:
                    self.observer.storage(parameter.grad).category = "grad"

    def run(self) -> Step:
        """The second of two steps, recorded."""
        self.step()
        # Cycles of objects are cleared here, and not at times that depend on the process.
        gc.collect()
        gc.disable()
        step = Step()
        known = [held for _, held in self.observer.held.values()]
        self.categorise()
        step.start = {held: held.size for held in known}
        for held in known:
            held.category = held.category or "persistent_other"
        self.saved.begin()
        self.observer.step = step
        loss = self.step()
        self.observer.step = None
        gc.enable()
        del loss
        return step

    def categorise(self) -> None:
        """The categories of what lives between two steps."""
        observer = self.observer
        for parameter in self.parameters():
            observer.storage(parameter).category = "param"
            for value in state_of(self.optimizers, parameter):
                observer.storage(value).category = "optimizer_state"
        for tensor in (*self.tokens, *self.labels, *self.tables.tensors()):
            observer.storage(tensor).category = "input_and_buffer"
        for tensor in unsharded(self.models):
            observer.storage(tensor).category = "fsdp_unsharded_param"


@contextlib.contextmanager
def default(dtype: torch.dtype) -> Iterator[None]:
    """New tensors have this type inside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def unsharded(models: list[Model]) -> Iterator[torch.Tensor]:
    """The gathered weights of FSDP's units, and the parts of them that are kept for the backward."""
    for model in models:
        for module in model.modules():
            state = getattr(module, "_get_fsdp_state", None)
            if state is None:
                continue
            for group in getattr(state(), "_fsdp_param_groups", None) or [state()._fsdp_param_group]:
                for parameter in group.fsdp_params if group else ():
                    yield from parameter.all_gather_outputs
                    if (part := getattr(parameter, "_sharded_post_forward_param_data", None)) is not None:
                        yield part


def tables(config: Mapping[str, Any]) -> Tables:
    """The tensors that are no weights, as large as this rank needs them."""
    rows = config["seq"] // config["cp"]
    found = Tables(torch.zeros(rows, dtype=torch.int64))
    if config["style"] != "gpt":
        dtype = torch.bfloat16 if config["dtype"] == "bf16" else torch.float32
        found.cos, found.sin = (torch.zeros(rows, 1, config["head_dim"] // 2, dtype=dtype) for _ in range(2))
    if config["attn"] == "math" or (config["cp"] > 1 and config["cp_impl"] == "allgather-kv"):
        found.mask = torch.zeros(rows, config["seq"], dtype=torch.bool)
    if config["style"] == "moe":
        chosen = config["batch"] * rows * config["topk"]
        found.routed, found.back = (torch.zeros(chosen, dtype=torch.int64) for _ in range(2))
    return found


def seen(config: Mapping[str, Any], place: int) -> float:
    """The share of pairs that a causal mask leaves to the rank at a place of the context axis."""
    rows = config["seq"] // config["cp"]
    return (rows * place + (rows + 1) / 2) / config["seq"]


def recomputing(config: Mapping[str, Any], observer: Observer) -> tuple[Any, Any]:
    """The contexts of a checkpoint's forward and of its recomputation."""
    again = observer.during("recompute")
    if config["recompute"] != "sac":
        return contextlib.nullcontext(), again

    def kept(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE if operator in _KEPT else CheckpointPolicy.PREFER_RECOMPUTE

    first, second = create_selective_checkpoint_contexts(kept)
    stack = contextlib.ExitStack()

    @contextlib.contextmanager
    def both() -> Iterator[None]:
        with again, second:
            yield

    del stack
    return first, both()


def described(job: Job) -> dict[str, Any]:
    """What a record has on the rank itself."""
    own = {id(each): local(each) for each in job.parameters()}.values()
    found = {
        "world": job.ranks.world,
        "mesh": job.ranks.sizes,
        "params": {
            "local_numel": sum(each.numel() for each in own),
            "local_bytes": sum(each.numel() * each.element_size() for each in own),
            "module_numel_before_sharding": job.whole,
        },
    }
    found["torch"] = torch.__version__
    return found
