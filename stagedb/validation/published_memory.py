"""Memory compared with a record's: states, bytes saved for the backward, bytes at the end of phases, the peak."""

from collections.abc import Iterator, Mapping
from typing import Any

from stagedb.ir.operators import LayerNorm, load
from stagedb.lowering import Program
from stagedb.memory import Category, ClassMemory, memory_of
from stagedb.memory.chunk_tensors import loss_of
from stagedb.memory.class_program import SharePlace
from stagedb.plans import Plan
from stagedb.schedules import splits
from stagedb.validation.op_order import CountDifference
from stagedb.validation.records import Record, plan_words

CATEGORIES: Mapping[str, tuple[Category, ...]] = {
    "param": (Category.PARAMETERS,),
    "grad": (Category.GRADIENTS,),
    "optimizer_state": (Category.OPTIMIZER, Category.MASTER),
    "input_and_buffer": (Category.INPUTS,),
    "fsdp_unsharded_param": (Category.GATHERED,),
    "persistent_other": (Category.COMMUNICATION,),
}
"""A record's categories in stagedb's terms. The rest is activations and temporaries, which it may count as one."""

PEAK, SMALL, LARGE = 0.005, 0.03, 1024
"""Bounds on peaks, as a share: from this hidden size on, and below it, where a few small buffers are a large share."""

MOMENTS = {"forward_end": "forward", "backward_end": "backward", "optimizer_end": "optimizer"}
"""The phase that ends at each moment of a record."""


def compare_memory(record: Record, program: Program) -> Iterator[CountDifference]:
    """Every quantity of a record's memory, in bytes."""
    theirs = record.memory
    if theirs is None:
        return
    number = int(program.workload.ranks.number[record.rank])
    place = SharePlace.of_rank(program.plan, record.rank)
    found = next(each for each in memory_of(program, place) if each.rank_class.number == number)
    statistics, kept = _Statistics(found, record.config), _kept_by_hooks(found, record)
    start, padding = found.usage.before(), _padding(found, record.config)
    yield CountDifference("parameter bytes", theirs.parameters, start.get(Category.PARAMETERS, 0) - padding)
    if record.config["recompute"] != "sac":
        chunks = [found.saved(program.chunk) for program in found.programs]
        held = sum(_total(saved) - statistics.of_saved(saved) for saved in chunks)
        yield CountDifference("saved for the backward", theirs.saved, held)
        layers = [position for position, layer in found.program.layers.items() if layer is not None]
        if theirs.layer is not None and layers:
            middle = layers[len(layers) // 2]
            own = {middle: chunks[0][middle]}
            yield CountDifference("saved by one layer", theirs.layer, _total(own) - statistics.of_saved(own))
    for moment, phase in MOMENTS.items():
        if moment not in theirs.levels:
            continue
        last = max(i for i, task in enumerate(found.usage.tasks) if task.kind.phase == phase)
        ours = found.usage.after(last)
        over = statistics.bytes if moment == "forward_end" else 0
        scalars = _of_recorder(found, record.config, moment) if theirs.recorder is None else theirs.recorder
        recorder = {Category.COMMUNICATION: scalars + kept}
        ours = {category: ours.get(category, 0) + recorder.get(category, 0) for category in Category}
        yield from _levels(moment, theirs.levels[moment], ours, over)
    peak, bound = found.usage.at(found.peak), PEAK if record.config["hidden"] >= LARGE else SMALL
    over = statistics.bytes if Category.ACTIVATIONS in peak else 0
    yield CountDifference("peak bytes", theirs.peak, sum(peak.values()) + kept - over, bound)


def memory_notes(record: Record) -> Iterator[str]:
    """Parts of a record's memory that only its libraries decide, and how they were compared."""
    if record.memory is None:
        return
    if record.config["recompute"] == "sac":
        yield "saved for the backward: the record has only checkpoint inputs; live bytes after forward are compared"
    if record.config["ep"] > 1:
        yield "gradients of weights other than experts: the record reduces them over ep, here the ranks of dp"
    if record.memory.recorder is None:
        yield "4-byte scalars of the recorder are added: a loss of the step before, and a sum of a pipeline's loop"
        if _splits(record.config):
            yield "split backwards: the recorder kept what attention saved in the step before, which is added"
    if record.config["style"] == "gpt" and record.config["dtype"] == "bf16":
        yield "LayerNorm's statistics: bf16 on the CPU of the record, fp32 on accelerators; counted as recorded"


SCALAR = 4
"""Bytes of a number that the recorder holds."""


def _of_recorder(found: ClassMemory, config: Mapping[str, Any], moment: str) -> int:
    """Bytes of the recording program itself, which no plan has.

    It keeps the loss of the step before, and on the last stage of a pipeline a sum that begins at `torch.tensor(0.0)`.
    With FSDP a further one lives until the optimizer's end where the loss is.
    """
    here = any(loss_of(program) is not None for program in found.programs)
    sharded = config["dp_kind"] == "fsdp" and moment != "optimizer_end"
    return SCALAR * (1 + (here and config["pp"] > 1) + (here and sharded))


def _splits(config: Mapping[str, Any]) -> bool:
    """Whether a record's backwards run as two halves."""
    return any(map(splits, Plan.from_mapping(plan_words(config)).orders()))


def _kept_by_hooks(found: ClassMemory, record: Record) -> int:
    """Bytes that hooks on saved tensors kept from the step before, in records without a count of them.

    Such a hook gave autograd attention's own result back. The operator and its result then hold each other, with all
    that the operator saved, until the operator runs. The second half of a split backward never runs it.
    """
    if record.memory is None or record.memory.recorder is not None:
        return 0
    return sum(
        program.sizes[name] * sum(task.kind is program.forward and task.chunk == program.chunk for task in tasks)
        for tasks in (found.usage.tasks,)
        for program in found.programs
        if len(program.backwards) > 1
        for item in program.items[program.backwards[0]]
        if item.op.kind == "attention"
        for name, position in item.reads
        if any((name, position) in made.writes for made in program.items[program.forward])
    )


def _padding(found: ClassMemory, config: Mapping[str, Any]) -> int:
    """Bytes of rows that the rank's parameters have only to be as large as those of other ranks."""
    if config["dp_kind"] != "fsdp":
        return 0
    places = ((program, block) for program in found.programs for _, block in program.places)
    return sum(
        program.parts[name] - program.own[name]
        for program, block in places
        for name, tensor in program.tensors.items()
        if tensor.role == "weight" and tensor.block == block and name in program.parts
    )


def _levels(
    moment: str, theirs: Mapping[str, int], ours: Mapping[Category, int], over: int
) -> Iterator[CountDifference]:
    when = moment.replace("_", " ")
    for word, categories in CATEGORIES.items():
        mine = sum(ours.get(category, 0) for category in categories)
        if mine or theirs.get(word):
            yield CountDifference(f"{word} bytes at {when}", theirs.get(word, 0), mine)
    rest = sum(size for word, size in theirs.items() if word not in CATEGORIES)
    named = {category for categories in CATEGORIES.values() for category in categories}
    mine = sum(size for category, size in ours.items() if category not in named) - over
    yield CountDifference(f"activation bytes at {when}", rest, mine)


def _total(saved: Mapping[int, Mapping[str, int]]) -> int:
    return sum(size for tensors in saved.values() for size in tensors.values())


class _Statistics:
    """LayerNorm's means and deviations: torch keeps them in bf16 on a CPU, where the records were made."""

    def __init__(self, found: ClassMemory, config: Mapping[str, Any]) -> None:
        items = [item for program in found.programs for item in program.items[program.forward]]
        norms = [item.op for item in items if item.op.kind == "norm" and isinstance(load(item.op.semantics), LayerNorm)]
        narrow = config["dtype"] == "bf16"
        self.names = {name for op in norms for name in op.writes[1:]} if narrow else set()
        self.bytes = sum(self.of_saved(found.saved(program.chunk)) for program in found.programs) if self.names else 0

    def of_saved(self, saved: Mapping[int, Mapping[str, int]]) -> int:
        """Saved bytes that fp32 takes in addition to bf16."""
        return sum(size // 2 for tensors in saved.values() for name, size in tensors.items() if name in self.names)
