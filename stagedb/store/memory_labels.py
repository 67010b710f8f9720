"""Labels and relationships of memory over a step. `stagedb memory` writes them."""

from stagedb.store.schema_forms import INSTANCE, Label, Property, Relationship, id_of

_CLASS = Property("class", "integer", "number of its rank class")

MEMORY_LABELS = (
    Label(
        "Memory",
        "The memory of one rank of a class over a step.",
        (
            id_of("instance id, `/`, class"),
            INSTANCE,
            _CLASS,
            Property("peak", "integer", "the most that it holds at once", "B"),
            Property("phase", "string", "phase of the peak: forward, backward or optimizer"),
            Property("task", "integer", "index of the task that runs at the peak"),
            Property("microbatch", "integer?", "its micro-batch; absent for the step"),
            Property("name", "string", "name of the op that runs at the peak"),
            Property("content", "string?", "digest of its content as it was made; absent in older ones"),
        ),
        style=("#c990c0", "peak"),
    ),
    Label(
        "MemoryLevel",
        "Bytes of one category that a rank of one class holds at one moment of a step.",
        (
            id_of("instance id, `/`, class, `/`, moment, `/`, category"),
            INSTANCE,
            _CLASS,
            Property(
                "moment",
                "string",
                "start, forward_end, backward_end, step_end, forward_peak, backward_peak, optimizer_peak, peak, or "
                "host: all the time, in the memory of the host",
            ),
            Property("category", "string", "parameters, gradients, optimizer_state, activations …"),
            Property("bytes", "integer", "held at that moment", "B"),
        ),
        style=("#da7194", "category"),
    ),
    Label(
        "MemoryTensor",
        "Tensors of one name that a rank of one class holds at its peak.",
        (
            id_of("instance id, `/`, class, `/`, its place by size"),
            INSTANCE,
            _CLASS,
            Property("name", "string", "the tensor's name in the graph, or that of a buffer"),
            Property("layer", "integer?", "layer, counted over the chunks of the stage; absent outside layers"),
            Property("category", "string", "why it is held"),
            Property("count", "integer", "how many are held: one a micro-batch in flight"),
            Property("bytes", "integer", "of all of them together", "B"),
        ),
        style=("#4c8eda", "name"),
    ),
)

MEMORY_RELATIONSHIPS = (
    Relationship("HAS_MEMORY", "RankClass", "Memory", "The memory of one rank of the class.", owns=True),
    Relationship("HAS_LEVEL", "Memory", "MemoryLevel", "Bytes by moment and category.", owns=True),
    Relationship("HOLDS", "Memory", "MemoryTensor", "The tensors that are held at the peak.", owns=True),
    Relationship("COPY_OF", "MemoryTensor", "SymTensor", "The tensor of the graph; a buffer has none."),
    Relationship("PEAKS_IN", "Memory", "Task", "The task that runs at the peak."),
    Relationship("PEAKS_AT", "Memory", "Op", "The op that runs at the peak; none at a task's end."),
)
