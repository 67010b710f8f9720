"""The record of a configuration: its rank's second step on shape-only tensors. The process group sends nothing."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from scripts.recording.record_format import row
from scripts.recording.under_torch.blocks import BlockJob
from scripts.recording.under_torch.pipelining import PipelineJob
from scripts.recording.under_torch.training import Job, described


def kind_of_job(config: Mapping[str, Any]) -> type[Job]:
    """How a configuration trains. Blocks other than the usual ones are not recorded in pipelines."""
    if config.get("block"):
        return BlockJob
    return PipelineJob if config["pp"] > 1 else Job


def record(config: Mapping[str, Any]) -> dict[str, Any]:
    """The record of a configuration."""
    job = kind_of_job(config)(config)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), job.observer:
            job.build()
            step = job.run()
            about, saved = described(job), job.saved.summary(job.models)
    finally:
        dist.destroy_process_group()
    if isinstance(job, PipelineJob) and job.orders():
        config = {**config, "orders": job.orders()}
    return row(config, step, about, saved)
