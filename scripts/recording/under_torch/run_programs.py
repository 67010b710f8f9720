"""Programs that train on real processes: a small Llama and a small mixture of experts, made parallel by PyTorch."""

import time
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function
from torch.utils.checkpoint import noop_context_fn

from scripts.recording.run_requests import Sleep
from scripts.recording.under_torch.model import Context, Layer, Model, Tables, loss_of
from scripts.recording.under_torch.optimizers import groups, trained
from scripts.recording.under_torch.parallel import Ranks, parallel

MEETINGS = 16
"""Barriers before a step. They take little time, so that ranks leave them together even on a busy machine."""


class NamedLayer(Layer):
    """A layer that names itself in traces, and that a rank may sleep before."""

    sleep: Sleep | None = None

    def __init__(self, context: Context, place: int, turn: int) -> None:
        super().__init__(context, place, turn)
        self.place = place

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with record_function(f"layer {self.place}"):
            return super().forward(x)


class NamedModel(Model):
    layer = NamedLayer


class Program:
    """A rank's model, inputs and optimizer on real processes."""

    def __init__(self, config: Mapping[str, Any], sleep: Sleep | None) -> None:
        torch.manual_seed(0)
        self.config, self.ranks = config, Ranks(config)
        self.context = Context(config, _tables(config), noop_context_fn)
        if config["ep"] > 1:
            self.context.expert_group = self.ranks["ep"].get_group()
        self.model = self.made()
        for parameter in self.model.parameters():
            nn.init.normal_(parameter, std=0.02)
        for layer in self.model.layers.values():
            if sleep is not None and sleep.rank == config["rank"] and layer.place == sleep.layer:
                layer.register_forward_pre_hook(lambda *_: time.sleep(sleep.seconds))
        self.module = self.parallelised()
        self.optimizer = torch.optim.AdamW(groups(trained([self.model])), lr=1e-4, fused=True)
        shape = (config["batch"] * config["microbatches"], config["seq"])
        self.tokens, self.labels = (torch.randint(config["vocab"], shape) for _ in range(2))

    def made(self) -> Model:
        """The part of the model that this rank has."""
        return NamedModel(self.context, range(self.config["layers"]), True, True)

    def parallelised(self) -> nn.Module:
        """The model as it runs. The weights that all ranks of experts have are reduced by DDP."""
        if self.config["ep"] == 1:
            return parallel(self.config, self.ranks, self.model)
        own = [name for name, _ in self.model.named_parameters() if ".experts." in name]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(self.model, own)
        return DistributedDataParallel(self.model, process_group=self.ranks["ep"].get_group())

    def meet(self) -> None:
        """Barriers before a step."""
        for _ in range(MEETINGS):
            dist.barrier()

    def step(self) -> None:
        """One step, and what a loop of training reports of it: the mean of the loss over all ranks."""
        loss = self.trained()
        self.optimizer.step()
        self.optimizer.zero_grad()
        dist.all_reduce(loss)

    def trained(self) -> torch.Tensor:
        """Forward and backward. Returns the loss, 0 where this rank has none."""
        loss = loss_of(self.module(self.tokens), self.labels)
        loss.backward()
        return loss.detach()


class PipelineProgram(Program):
    """A rank's stage of a pipeline, with one stage a rank. schedule_class: the order of its tasks."""

    schedule_class = Schedule1F1B

    def made(self) -> Model:
        config, place = self.config, self.ranks.place("pp")
        each = config["layers"] // config["pp"]
        layers = range(place * each, (place + 1) * each)
        return NamedModel(self.context, layers, place == 0, place == config["pp"] - 1)

    def parallelised(self) -> nn.Module:
        module = super().parallelised()
        config, place, count = self.config, self.ranks.place("pp"), self.config["pp"]
        batch, seq = config["batch"], config["seq"]
        tokens = torch.empty(batch, seq, dtype=torch.int64, device="meta")
        hidden = torch.empty(batch, seq, config["hidden"], device="meta", requires_grad=True)
        logits = torch.empty(batch, seq, config["vocab"], device="meta", requires_grad=True)
        stage = PipelineStage(
            module,
            place,
            count,
            torch.device("cpu"),
            input_args=(tokens if place == 0 else hidden,),
            output_args=(logits if place == count - 1 else hidden,),
            group=self.ranks["pp"].get_group(),
        )
        self.schedule = self.schedule_class(stage, config["microbatches"], loss_fn=loss_of)
        return module

    def trained(self) -> torch.Tensor:
        losses: list[torch.Tensor] = []
        given = (self.tokens,) if self.ranks.place("pp") == 0 else ()
        self.schedule.step(*given, target=self.labels, losses=losses, return_outputs=False)
        return torch.stack(losses).mean().detach() if losses else torch.zeros(())


def program_of(config: Mapping[str, Any], sleep: Sleep | None) -> Program:
    """The program of a rank's configuration, made."""
    return (PipelineProgram if config["pp"] > 1 else Program)(config, sleep)


def _tables(config: Mapping[str, Any]) -> Tables:
    """Rotary positions, and a routing of tokens by which every expert has as many."""
    rows = config["seq"]
    angles = torch.outer(torch.arange(rows), 1e4 ** -torch.linspace(0, 1, config["head_dim"] // 2)).unsqueeze(1)
    # In the format in which weights are gathered: queries and values must have the same one.
    dtype = torch.float32 if config["mixed"] == "none" else torch.bfloat16
    found = Tables(torch.arange(rows), angles.cos().to(dtype), angles.sin().to(dtype))
    if config["style"] == "moe":
        found.routed = torch.randperm(config["batch"] * rows * config["topk"])
        found.back = torch.argsort(found.routed)
    return found
