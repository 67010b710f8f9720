"""A rank's stages of a pipeline, run by PyTorch's own schedules."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining._utils import InferenceMode

from scripts.recording.under_torch.model import Model
from scripts.recording.under_torch.observer import Observer
from scripts.recording.under_torch.saving import Saved
from scripts.recording.under_torch.trained import trained
from scripts.recording.under_torch.training import DTYPES, Job, default

SCHEDULES: Mapping[str, Callable[..., Any]] = {
    "1f1b": schedules.Schedule1F1B,
    "gpipe": schedules.ScheduleGPipe,
    "interleaved": schedules.ScheduleInterleaved1F1B,
    "izb": schedules.ScheduleInterleavedZeroBubble,
    "zbv": schedules.ScheduleZBVZeroBubble,
    "bfs": schedules.ScheduleLoopedBFS,
}
VIRTUAL = ("interleaved", "izb", "zbv", "bfs", "orders")


class ObservedStage(PipelineStage):
    """A stage whose forwards and backwards are phases of the observer, and whose messages have a direction."""

    def __init__(self, observer: Observer, saved: Saved, *given: Any, **words: Any) -> None:
        super().__init__(*given, **words)
        self.observer, self.saved = observer, saved
        self._inference_mode = InferenceMode.STATIC

    def forward_one_chunk(self, fwd_chunk_id: int, *given: Any, **words: Any) -> Any:
        with self.observer.during("forward"):
            if fwd_chunk_id:
                return super().forward_one_chunk(fwd_chunk_id, *given, **words)
            with self.saved:
                return super().forward_one_chunk(fwd_chunk_id, *given, **words)

    def backward_one_chunk(self, *given: Any, **words: Any) -> Any:
        with self.observer.during("backward"):
            return super().backward_one_chunk(*given, **words)

    def backward_weight_one_chunk(self, *given: Any, **words: Any) -> Any:
        with self.observer.during("backward"):
            return super().backward_weight_one_chunk(*given, **words)

    def perform_reduce_grad(self, *given: Any, **words: Any) -> Any:
        with self.observer.during("backward"):
            return super().perform_reduce_grad(*given, **words)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._directed("forward", super().get_fwd_recv_ops(fwd_chunk_id))

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        return self._directed("forward", super().get_fwd_send_ops(fwd_chunk_id))

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._directed("backward", super().get_bwd_recv_ops(bwd_chunk_id))

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        return self._directed("backward", super().get_bwd_send_ops(bwd_chunk_id))

    def _directed(self, phase: str, sent: list[dist.P2POp]) -> list[dist.P2POp]:
        for each in sent:
            self.observer.storage(each.tensor).direction = phase
        return sent


class PipelineJob(Job):
    """A rank's job with the stages that a schedule places on it."""

    def made(self) -> list[Model]:
        config = self.config
        self.stages = stages_of(config, self.ranks.place("pp"))
        bounds = layers_of(config)
        models = []
        with default(self.dtype):
            for place, stage in enumerate(self.stages):
                last = stage == len(bounds) - 1
                before = sum(len(bounds[each]) for each in self.stages[:place])
                model = Model(self.context, bounds[stage], stage == 0, last, before)
                models.append(trained(model, config))
        self.whole = sum(each.numel() for model in models for each in model.parameters())
        return models

    def build(self) -> None:
        super().build()
        config = self.config
        count, rows = config["microbatches"], config["seq"] // config["cp"]
        self.tokens, self.labels = ([torch.zeros(config["batch"] * count, rows, dtype=torch.int64)] for _ in range(2))
        made = SCHEDULES.get(config["pp_schedule"]) or partial(ordered, config)
        stages = [self.stage(model, stage) for model, stage in zip(self.modules, self.stages, strict=True)]
        several = config["pp_schedule"] in VIRTUAL
        self.schedule: Any = made(stages if several else stages[0], count, loss_fn=self.loss)
        # The stages know all shapes, so their vote on how to find them is not needed, nor its result's value.
        self.schedule._warmup_p2p = lambda *_: None

    def stage(self, module: torch.nn.Module, stage: int) -> ObservedStage:
        """One stage, with the shapes of what it receives and sends."""
        config, total = self.config, len(layers_of(self.config))
        batch, rows = config["batch"], config["seq"] // config["cp"]
        dtype = torch.bfloat16 if config["mixed"] == "fp32master" else DTYPES[config["dtype"]]
        between = rows // config["tp"] if config["sp"] else rows
        hidden = torch.empty(batch, between, config["hidden"], dtype=dtype, device="meta", requires_grad=True)
        tokens = torch.empty(batch, rows, dtype=torch.int64, device="meta")
        width = config["vocab"] if config["loss_chunks"] == 1 else config["hidden"]
        logits = torch.empty(batch, rows, width, dtype=dtype, device="meta", requires_grad=True)
        return ObservedStage(
            self.observer,
            self.saved,
            module,
            stage,
            total,
            torch.device("cpu"),
            input_args=(tokens if stage == 0 else hidden,),
            output_args=(logits if stage == total - 1 else hidden,),
            group=self.ranks["pp"].get_group(),
        )

    def loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of a micro-batch, which a schedule asks for."""
        with self.observer.during("forward"):
            if self.saved.once():
                with self.saved:
                    return self.made_of(logits, labels)
            return self.made_of(logits, labels)

    def step(self) -> torch.Tensor | None:
        self.observer.phase = "forward"
        losses: list[torch.Tensor] = []
        self.saved.losses = 0
        given = self.tokens if 0 in self.stages else ()
        self.schedule.step(*given, target=self.labels[0], losses=losses, return_outputs=False)
        loss = torch.stack(losses).mean() if losses else None
        self.mark("backward_end")
        del losses
        self.update()
        self.mark("optimizer_end")
        return loss

    def orders(self) -> list[str]:
        """The actions of every rank, in the words of a record; empty for schedules of one chunk."""
        if not hasattr(self.schedule, "pipeline_order"):
            return []
        return [
            " ".join(action_word(each, rank, self.config) for each in actions if each is not None)
            for rank, actions in sorted(self.schedule.pipeline_order.items())
        ]


def action_word(action: Any, rank: int, config: Mapping[str, Any]) -> str:
    """One action: its kind, micro-batch, and chunk of its rank where that is not the first."""
    chunk = stages_of(config, rank).index(action.stage_index)
    return f"{action.computation_type.value}{action.microbatch_index}{f'.{chunk}' if chunk else ''}"


def ordered(config: Mapping[str, Any], stages: list[PipelineStage], count: int, **words: Any) -> Any:
    """A schedule that runs the orders of a configuration: words as in `F0` and `I3.1`."""
    found = schedules._PipelineScheduleRuntime(stages, count, **words)
    found.pipeline_order = {
        rank: [action(word, stages_of(config, rank)) for word in order.split()]
        for rank, order in enumerate(config["orders"])
    }
    found._prepare_schedule_with_comms(found.pipeline_order)
    return found


def action(word: str, stages: list[int]) -> Any:
    """The action of a word. stages: the stages of its rank, by chunk."""
    task, _, chunk = word.partition(".")
    kind = schedules._ComputationType.from_str(task[0])
    return schedules._Action(stages[int(chunk or 0)], kind, int(task[1:]))


def stages_of(config: Mapping[str, Any], place: int) -> list[int]:
    """The stages that a rank has: every p-th, one on the way down and one on the way up, or as placed."""
    pp = config["pp"]
    if config.get("placement"):
        return [stage for stage, rank in enumerate(config["placement"]) if rank == place]
    if config["pp_schedule"] == "zbv":
        return [place, 2 * pp - 1 - place]
    return [place + pp * chunk for chunk in range(config.get("virtual", 1) or 1)]


def layers_of(config: Mapping[str, Any]) -> list[range]:
    """The layers of each stage."""
    total = config["pp"] * (2 if config["pp_schedule"] == "zbv" else config.get("virtual", 1) or 1)
    sizes = config.get("stage_layers") or [config["layers"] // total] * total
    found, begin = [], 0
    for size in sizes:
        found.append(range(begin, begin + size))
        begin += size
    return found
