"""The options that describe a graph and a plan: the same words in every command that takes one."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from stagedb.schedules import DEFAULT, SCHEDULES

_SCHEDULES = "; ".join(f"{name}, {schedule.help}" for name, schedule in SCHEDULES.items())


@dataclass(frozen=True)
class GraphWords:
    """What changes a graph's structure; None where the command line does not say."""

    recipe: Annotated[
        str | None, typer.Option(metavar="torch|megatron", help="Whose habits the graph follows.  [torch]")
    ] = None
    sp: Annotated[
        bool | None,
        typer.Option("--sp/--no-sp", help="Sequence parallelism between tensor-parallel regions.  [no-sp]"),
    ] = None
    attention: Annotated[
        str | None, typer.Option(metavar="fused|math", help="One flash-like kernel, or matmuls and a softmax.  [fused]")
    ] = None
    matmul_dtype: Annotated[
        str | None,
        typer.Option(metavar="same|fp8", help="Operands of linear layers: as --dtype, or cast to fp8.  [same]"),
    ] = None
    dropout: Annotated[float | None, typer.Option(metavar="P", help="Dropout probability.  [0]")] = None
    kernels: Annotated[
        str | None,
        typer.Option(
            metavar="fused|eager", help="Fused element-wise kernels, or one a primitive as autograd runs.  [fused]"
        ),
    ] = None
    shared_input: Annotated[
        bool | None,
        typer.Option(
            "--shared-input/--no-shared-input",
            help="Gather a tensor-parallel region's input once, or for each matmul on its own.  [shared-input]",
        ),
    ] = None
    loss_parallel: Annotated[
        bool | None,
        typer.Option(
            "--loss-parallel/--gather-logits",
            help="Cross-entropy on vocabulary-parallel logits, or on gathered ones.  [loss-parallel]",
        ),
    ] = None
    strategy: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Sharding rules of your own, by region of the model (YAML)."),
    ] = None
    recompute: Annotated[
        str | None,
        typer.Option(
            metavar="none|full|core|pointwise|operators",
            help="What a layer's backward computes again: all, the attention core, all but matmuls, or what "
            "--recompute-operators names.  [none]",
        ),
    ] = None
    recompute_operators: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Operators of a layer, each with all under its name, such as attn_norm,ffn.gate.",
        ),
    ] = None
    early_stop: Annotated[
        bool | None,
        typer.Option(
            "--early-stop/--no-early-stop",
            help="Recompute only what the backward reads, or all.  [torch: early-stop; megatron: all]",
        ),
    ] = None
    zero: Annotated[
        int | None,
        typer.Option(
            metavar="0|1|2|3",
            help="Sharded over dp: nothing, the optimizer's state, gradients, parameters.  [0]",
        ),
    ] = None
    reshard: Annotated[
        bool | None,
        typer.Option(
            "--reshard/--no-reshard", help="With --zero 3, give parameters back after the forward.  [reshard]"
        ),
    ] = None
    grad_sync: Annotated[
        bool | None,
        typer.Option(
            "--grad-sync/--no-grad-sync",
            help="Reduce gradients over dp after each micro-batch, or after the last.  [as the framework does]",
        ),
    ] = None
    cp_kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="How the ranks of --cp compute attention: allgather-kv, ring-allgather, ring-alltoall, ring-p2p, "
            "ulysses or ulysses-ring.  [torch: ring-allgather; megatron: ring-p2p]",
        ),
    ] = None
    cp_chunks: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="Which part of a sequence a rank of --cp has: balanced (a chunk from the front and one from the back) "
            "or contiguous.  [balanced where the kind can]",
        ),
    ] = None
    cp_grad_sync: Annotated[
        bool | None,
        typer.Option(
            "--cp-grad-sync/--no-cp-grad-sync", help="Reduce gradients over cp, too, or over dp alone.  [cp-grad-sync]"
        ),
    ] = None
    expert_tp: Annotated[
        bool | None,
        typer.Option(
            "--expert-tp/--no-expert-tp",
            help="Tensor parallelism partitions each expert too, or its ranks (with --sp) have whole ones, among those "
            "of --ep.  [expert-tp]",
        ),
    ] = None
    ep_sync: Annotated[
        bool | None,
        typer.Option(
            "--ep-sync/--no-ep-sync",
            help="Reduce over ep the gradients of all but experts; without, copies drift apart.  [ep-sync]",
        ),
    ] = None
    scatter_gather: Annotated[
        bool | None,
        typer.Option(
            "--scatter-gather/--no-scatter-gather",
            help="Of what ranks of tp hold alike each sends its part to the next stage, which gathers it; or each "
            "sends the whole.  [no-scatter-gather]",
        ),
    ] = None
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read these words from a YAML, JSON or TOML file; options given here win."),
    ] = None

    def words(self) -> dict[str, Any]:
        """What was said, as a plan's words: the file's, then the command line's on top."""
        said = {
            field.name: value
            for field in dataclasses.fields(self)
            if field.name != "plan" and (value := getattr(self, field.name)) is not None
        }
        if self.plan is None:
            return said
        from stagedb.parallel import read_plan_file

        return {**read_plan_file(self.plan), **said}


@dataclass(frozen=True)
class PlanWords(GraphWords):
    """How a training step is laid out over ranks; None where the command line does not say."""

    ranks: Annotated[
        int | None, typer.Option(metavar="N", help="World size; gives dp = N / (tp x pp x cp) where --dp is not said.")
    ] = None
    tp: Annotated[int | None, typer.Option(metavar="N", help="Tensor parallelism.  [1]")] = None
    pp: Annotated[int | None, typer.Option(metavar="N", help="Pipeline stages.  [1]")] = None
    dp: Annotated[int | None, typer.Option(metavar="N", help="Data parallelism.  [from --ranks, else 1]")] = None
    cp: Annotated[
        int | None, typer.Option(metavar="N", help="Context parallelism: ranks that share a sequence.  [1]")
    ] = None
    ulysses: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="With --cp-kind ulysses-ring: neighbours that exchange heads, in a ring over cp / N.  [1]"
        ),
    ] = None
    ep: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Expert parallelism, among the ranks of dp x cp (with --no-expert-tp also of tp): N divides them and "
            "the experts.  [1]",
        ),
    ] = None
    capacity_factor: Annotated[
        float | None,
        typer.Option(metavar="F", help="Slots of an expert, as a multiple of its even share.  [dropless]"),
    ] = None
    expert_load: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="How many choices of tokens go to each expert: a YAML or JSON list, or numbers as 3,1,2,2.  [even]",
        ),
    ] = None
    hsdp: Annotated[
        int | None,
        typer.Option(metavar="N", help="Copies of what is sharded, each on dp / N neighbouring ranks.  [1]"),
    ] = None
    micro_batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Sequences of one micro-batch on a data-parallel rank.  [1]")
    ] = None
    global_batch_size: Annotated[
        int | None,
        typer.Option(metavar="N", help="Sequences of one step.  [one micro-batch a data-parallel rank]"),
    ] = None
    seq_len: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens of a sequence.  [what the model was trained with]")
    ] = None
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="|".join((*SCHEDULES, "FILE")),
            help=f"Order of micro-batches on the stages: {_SCHEDULES}; or a YAML or JSON file with each stage's.  "
            f"[{DEFAULT.name}]",
        ),
    ] = None
    virtual_stages: Annotated[
        int | None, typer.Option(metavar="N", help="Chunks of layers on each stage; 1f1b is then interleaved.  [1]")
    ] = None
    recompute_every: Annotated[
        int | None, typer.Option(metavar="K", help="Recompute in every K-th layer of a stage alone.  [1]")
    ] = None
    layers_per_stage: Annotated[
        str | None,
        typer.Option(metavar="N,N,…", help="Layers of each stage.  [evenly, the remainder to the early stages]"),
    ] = None
    rank_order: Annotated[
        str | None, typer.Option(metavar="AXIS,…", help="Mesh axes, innermost first.  [tp,cp,dp,pp]")
    ] = None
    dtype: Annotated[
        str | None, typer.Option(metavar="bf16|fp16|fp32", help="Activations, and what else is not said.  [bf16]")
    ] = None
    param_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Parameters.  [--dtype; torch: fp32 with fp16]")
    ] = None
    grad_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Gradients.  [torch: as parameters; megatron: fp32]")
    ] = None
    reduce_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Gradients while they are reduced.  [as gradients]")
    ] = None
    opt_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Optimizer moments.  [torch: as parameters; megatron: fp32]")
    ] = None
    master_dtype: Annotated[
        str | None,
        typer.Option(
            metavar="none|fp32",
            help="The optimizer's own copy of parameters.  [torch: none; megatron: fp32 unless parameters are]",
        ),
    ] = None
    logits_dtype: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="Logits in the loss and their gradient.  [fp32]")
    ] = None
