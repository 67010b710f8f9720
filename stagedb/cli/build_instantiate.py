"""`build` and `instantiate`: from a model to a graph, from a graph to an instance."""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stagedb.cli import completion
from stagedb.cli.plan_options import GraphFlags, PlanFlags
from stagedb.cli.progress import progress
from stagedb.cli.shared_options import Common, option_groups
from stagedb.mentions import Word

if TYPE_CHECKING:
    from stagedb.api import InstanceInfo

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model's name, a card's path, or a Hugging Face config.json.",
        autocompletion=completion.models,
    ),
]


@option_groups
def build(model: ModelArgument, *, words: GraphFlags, common: Common) -> None:
    """Write a model's symbolic graph into the store.

    The graph has a symbol for every degree and size, so one graph serves all plans with the same options here.
    """
    given = words.words()
    began = time.perf_counter()
    with common.connect() as db:
        graph = db.build(model, **given)
    what = "built" if graph.new else "already in the store:"
    if graph.padding:
        common.note(graph.padding)
    common.line(f"{what} graph {graph.id[:12]} of {graph.name} ({graph.recipe}) in {time.perf_counter() - began:.1f} s")


@option_groups
def instantiate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|GRAPH",
            help="A model as in `build`, or the id of a graph in the store.",
            autocompletion=completion.models,
        ),
    ],
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the instance.  [the model's name]")] = None,
    *,
    words: PlanFlags,
    common: Common,
) -> None:
    """Copy a graph out under a plan, as an instance.

    An instance has rank classes with their operators and tasks, ranks and communicator groups. If the store lacks the
    model's graph, it is built first.
    """
    given = words.words()
    began = time.perf_counter()
    with common.connect() as db, progress(common, "making", "instance", before="making the graph and the instance"):
        instance = db.instantiate(target, name=name, **given)
    seconds = time.perf_counter() - began
    note_defaults(common, instance, given)
    what = "made" if instance.new else "already in the store:"
    common.line(
        f"{what} instance {instance.id[:12]} {instance.called}: {count(instance.ranks, 'rank')} in "
        f"{count(instance.classes, 'class', 'classes')}, in {seconds:.1f} s"
    )


def note_defaults(common: Common, instance: "InstanceInfo", given: Mapping[str, Any]) -> None:
    """Note what the user did not choose and may want to. given: the words of the command line."""
    note_model(common, instance)
    note_implied(common, instance, given)
    note_bubble(common, instance)
    note_runtime(common, instance)


def note_implied(common: Common, instance: "InstanceInfo", given: Mapping[str, Any]) -> None:
    """Note the words that follow from others: chunks of a schedule, whole choices of experts, groups of requests.

    given: the words that the user gave.
    """
    from stagedb.plans.expert_load import has_shares
    from stagedb.plans.schedule_checks import implied
    from stagedb.workflows import find_workflow

    plan = instance.plan
    groups = (plan["global_batch_size"] or 1) // (plan["dp"] * plan["micro_batch_size"])
    if plan["pp"] == 1 < groups and "micro_batch_size" not in given and find_workflow(plan["workflow"]).caches:
        common.note(
            f"a rank runs its {groups:,} requests one after the other, each in a pass of its own: "
            f"--micro-batch-size {groups} has all of them in one pass"
        )
    for word, value in implied(given).items():
        common.note(f"{Word(word)} {value}, as --schedule {given['schedule']} always has")
    placement = plan.get("chunk_placement") if plan.get("task_order") and "schedule" in given else None
    if placement and "chunk_placement" not in given:
        common.note(f"--chunk-placement {placement}, as the orders in {given['schedule']} have it")
    if has_shares(given.get("expert_load")):
        load = plan.get("expert_load") or (1,)
        numbers = ",".join(map(str, load[:8])) + (",…" if len(load) > 8 else "")
        common.note(f"shares of experts are whole choices of a rank: --expert-load {numbers}, of {sum(load):,}")


def note_model(common: Common, instance: "InstanceInfo") -> None:
    """Note what an instance has of its model that the user did not choose: sequences, and rows of the vocabulary."""
    note_length(common, instance)
    if instance.padding:
        common.note(instance.padding)


def note_length(common: Common, instance: "InstanceInfo") -> None:
    """Note which sequence length the user did not choose, and where it comes from."""
    if (usual := instance.usual_length) is not None:
        common.note(f"sequences of {usual.tokens:,} tokens ({usual.reason}); --seq-len sets another length")


def note_bubble(common: Common, instance: "InstanceInfo") -> None:
    """Note how long a pipeline with few micro-batches idles, if the user did not choose their number."""
    plan = instance.plan
    stages = plan["pp"]
    if stages == 1 or plan["global_batch_size"] is not None:
        return
    enough = 4 * stages
    batch = enough * plan["dp"] * plan["micro_batch_size"]
    common.note(
        f"one micro-batch a data-parallel rank: each of the {stages} stages idles {bubble(stages, 1):.0%} of the step; "
        f"with --global-batch-size {batch} it is {bubble(stages, enough):.0%}"
    )


def note_runtime(common: Common, instance: "InstanceInfo") -> None:
    """Note what the framework's pipeline runtime gathers or reduces in another way."""
    from stagedb.frameworks import find_framework
    from stagedb.plans import Plan
    from stagedb.plans.sharding_checks import other_gathers, other_reductions

    plan = instance.plan
    gathers = other_gathers(plan["zero"], plan["virtual_stages"], find_framework(plan["recipe"]))
    for other in (gathers, other_reductions(Plan.from_mapping(plan))):
        if other:
            common.note(other)


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, such as `1 rank` or `8 ranks`. many: the plural; with an s by default.

    one: the noun in the singular.
    """
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def bubble(stages: int, microbatches: int) -> float:
    """The share of a step that a stage idles while the pipeline fills and drains, in forward and backward.

    stages: of the pipeline. microbatches: of a step. Returns a number from 0 to 1.
    """
    return (stages - 1) / (microbatches + stages - 1)


def register(app: typer.Typer) -> None:
    """Add the commands to the application."""
    app.command()(build)
    app.command()(instantiate)
