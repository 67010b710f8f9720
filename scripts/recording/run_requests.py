"""Runs that `scripts/record_runs` records: what trains, on how many ranks, and what is wrong there. Without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scripts.recording.configurations import DEFAULTS, Config

_SIZES: Config = {
    "hidden": 384,
    "heads": 8,
    "kv_heads": 8,
    "head_dim": 48,
    "ffn": 1024,
    "vocab": 1024,
    "batch": 1,
    "seq": 256,
    "dtype": "fp32",
    "loss_parallel": False,
}
_MIXTURE: Config = {"style": "moe", "topk": 2, "ffn": 768, "ep_sync": True}

PROGRAMS: Mapping[str, Mapping[str, Any]] = {
    "tp": {"tp": -1, "sp": True, "seq": 768},
    "fsdp": {"dp": -1, "dp_kind": "fsdp"},
    "hsdp": {"dp": -1, "dp_kind": "fsdp", "dp_replicate": 2, "seq": 512},
    "fsdp-tp": {"dp": -1, "dp_kind": "fsdp", "tp": 2, "seq": 768},
    "pp": {"pp": -1, "microbatches": 4, "layers": -1},
    "pp-fsdp": {"pp": 2, "microbatches": 4, "dp": -1, "dp_kind": "fsdp"},
    "ep": _MIXTURE | {"ep": -1, "experts": -1},
    "ddp": {"dp": -1, "dp_kind": "ddp"},
    "fsdp-recompute": {"dp": -1, "dp_kind": "fsdp", "recompute": "full"},
    "fsdp-mixed": {"dp": -1, "dp_kind": "fsdp", "mixed": "fp32master", "dtype": "bf16"},
}
"""What trains: a small Llama, or a small mixture of experts, and its axes. -1: as many as ranks are left. Where ranks
wait often, sequences are longer, so that most of a step is computing."""


@dataclass(frozen=True)
class Sleep:
    """A rank that sleeps before a layer in each forward."""

    rank: int
    layer: int
    seconds: float


@dataclass(frozen=True)
class SlowLink:
    """What one rank sends another takes its time: the kernel paces the sockets. rate: bytes per second."""

    source: int
    target: int
    rate: int


FAULTS: Mapping[str, str] = {
    "extra-gather": "a layer's output is gathered",
    "small-buckets": "DDP's buckets are smaller",
    "wide-group": "a layer's gradients are reduced over all ranks",
    "no-prefetch": "no layer's weights are gathered before its backward begins",
    "all-reduce": "a layer's gradients are all-reduced",
    "no-checkpoint": "a layer is not recomputed",
    "fp32-unit": "a layer computes in fp32",
    "no-reduction": "a layer's gradients are not reduced",
    "all-forwards-first": "all micro-batches run forward before any runs backward",
}
"""What may be wrong with a program (`run_faults` of `under_torch`)."""


@dataclass(frozen=True)
class RunRequest:
    """A run to record. steps: how many are recorded. first: whether its processes run before all other programs.

    fault: of `FAULTS`. shapes: whether the shapes of operands are recorded. memory: whether allocations are, too.
    """

    program: str
    ranks: int
    steps: int = 1
    sleep: Sleep | None = None
    slow_link: SlowLink | None = None
    first: bool = False
    fault: str | None = None
    shapes: bool = False
    memory: bool = False
    config: Config = field(default_factory=dict)

    def completed(self) -> Config:
        """The configuration of a rank. Raises ValueError if the ranks do not suffice for the axes."""
        config = DEFAULTS | _SIZES | dict(PROGRAMS[self.program]) | self.config
        taken = 1
        for axis in ("tp", "dp", "dp_replicate", "ep", "pp"):
            taken *= max(config[axis], 1)
        if self.ranks % taken or self.ranks < 2:
            raise ValueError(f"{self.program} has axes of {taken} ranks, which {self.ranks} ranks do not divide into")
        return {word: self.ranks // taken if value == -1 else value for word, value in config.items()}
