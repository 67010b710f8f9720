"""Labels and relationships of graphs, instances, profiles, memory over a step, and searches."""

from stagedb.collectives import ALL_GATHER
from stagedb.models.kinds import PARTS
from stagedb.plans.aspects import FORMAT_WORDS, GRAPH_WORDS, LAYOUT_WORDS
from stagedb.store.schema_forms import INSTANCE, OWNED, Label, Property, Relationship, id_of

# Labels and relationships of symbolic graphs. `stagedb build` writes them.

NUMBER = Property("number", "integer", "its place in the graph")
PRESENT = Property("present", "string?", "it exists where this expression is above 0; absent: always")
_DEPTH = Property("depth", "integer?", "the layer for further tokens that it is in, from 1")
_GRAPH = Property("graph", "string", "id of the graph that it belongs to")

SIZES: dict[str, tuple[str, str]] = {
    "L": ("layers", "number of layers"),
    "LS": (
        "sharing_layers",
        "number of layers where some read more than the stream: they are one block, and `layers` is 1",
    ),
    "HL": ("layer_input", "width of the rows that a token has for each layer"),
    "VL": ("layer_input_vocabulary", "rows of the table of those, padded as the vocabulary"),
    "H": ("hidden", "hidden size"),
    "V": ("vocabulary", "rows of the embedding table, padded as the recipe pads it"),
    "S": ("sequence", "sequence length of plans that name none"),
    "P": ("positions", "rows of the table of learned positions"),
    "FD": ("dense_ffn", "width of feed-forwards in parallel with experts"),
    "NS": ("streams", "residual streams, where there are several"),
    "MT": ("drafting_layers", "layers for further tokens that draft tokens in a step, where there are some"),
    **{name: (each.property, each.about) for part in PARTS for name, each in part.symbols.items()},
}
"""A model's symbols, each with its property of `Graph` and its meaning."""

OPTIONS: dict[str, tuple[str, str]] = {
    name: (word.property_type, word.about.property) for name, word in GRAPH_WORDS.items()
}
"""The options that shape a graph: type and meaning. `Graph` has them as properties, `Instance` as words of its plan."""


def options() -> tuple[Property, ...]:
    """The properties of a graph that the words of its plan set."""
    return tuple(Property(name, type_, description) for name, (type_, description) in OPTIONS.items())


GRAPH_LABELS = (
    Label(
        "Graph",
        "A symbolic tensor graph: a model under one strategy and one recipe. Every degree and size is a symbol.",
        (
            id_of("digest of the model, the options and the format"),
            Property("name", "string", "the model's name"),
            *options(),
            *(Property(word, "integer?", f"{what} (`{symbol}`)") for symbol, (word, what) in SIZES.items()),
            Property("options", "string", "the options together, as canonical JSON"),
            Property("sizes", "string", "the model's symbols and their values, as canonical JSON"),
            Property(
                "blocks",
                "string",
                "the blocks in forward order, how often each repeats, and the layers of those that alternate, as JSON",
            ),
            Property("format", "integer", "version of the stored form"),
            Property("content", "string?", "digest of its content as it was made; absent in older ones"),
            *OWNED,
        ),
        indexes=(("name",),),
        style=("#4c8eda", "name"),
    ),
    Label(
        "SymTensor",
        "A tensor of one block of a graph.",
        (
            id_of("graph id, `/`, name"),
            _GRAPH,
            Property("name", "string", "unique in the graph"),
            NUMBER,
            Property("block", "string", "the block that it is in"),
            Property("role", "string", "input, weight, activation, gradient, optimizer_state, buffer or cache"),
            Property("dtype", "string", "class of its elements; a plan gives the format"),
            Property("axes", "string[]", "logical axes"),
            Property("shape", "string[]", "global size of each axis, as expressions"),
            Property("local", "string[]", "size of each axis on one rank, as expressions"),
            Property("layout", "string[]", "its placement on each mesh axis, such as `tp:partitioned(hidden)`"),
            Property("bytes", "string", "size on one rank, an expression", "B"),
            Property("order", "integer?", "weights: order of registration in the block"),
            Property("elements", "string?", "weights: number of elements on one rank, an expression"),
            Property("rows", "integer?", "weights that dp shards: how many of the first axes are cut as one"),
            Property("shard", "string?", "weights that dp shards: elements of one rank's part, an expression"),
            Property("gathers", "string[]?", "weights that dp shards: bucket ops that gather the parts"),
            Property("readers", "string[]?", "weights that dp shards: ops that read it"),
            Property("buckets", "string[]", "weights: bucket ops that its gradient passes, in order"),
            Property("grads", "string[]", "weights: ops that produce its gradient"),
            Property("tied", "string?", "the weight that it shares its values with"),
            Property("storage", "string?", "the tensor that it shares memory with; absent: it has its own memory"),
            Property("kept", "boolean", "it is kept for the backward, even if nothing there reads it"),
            PRESENT,
            Property("repeats", "string?", "the tensor that it recomputes; if it is absent, readers read that one"),
            _DEPTH,
            Property("experts", "boolean?", "it is in the module of a layer's experts"),
            Property("joined", "boolean?", "it is the weight of one matmul that makes queries, keys and values"),
            Property("owner", "string?", "states of the optimizer: the weight"),
            Property("word", "string?", "states of the optimizer: which state, such as `master`"),
        ),
        style=("#8dcc93", "name"),
    ),
    Label(
        "SymOp",
        "An operator of one block of a graph. Its costs on one rank are expressions.",
        (
            id_of("graph id, `/`, name"),
            _GRAPH,
            Property("name", "string", "unique in the graph"),
            NUMBER,
            Property("block", "string", "the block that it is in, `cut` for messages between stages, or `bucket`"),
            Property("template", "string", "forward, input_gradient, weight_gradient or step"),
            Property("type", "string", "compute, collective, send or recv"),
            Property("kind", "string", f"what it does: matmul, attention, {ALL_GATHER.name} …"),
            Property("phase", "string", "forward, backward, recompute or optimizer"),
            Property("when", "string", "for which micro-batches it runs: every, first or last"),
            Property("order", "integer", "issue order inside its block and template"),
            Property("flops", "string", "an expression", "flop"),
            Property("bytes_read", "string", "an expression", "B"),
            Property("bytes_written", "string", "an expression", "B"),
            Property("temporary", "string", "what it allocates only while it runs, an expression", "B"),
            Property("dims", "string[]", "sizes of a matmul, an attention, a convolution or a scan, as expressions"),
            Property("axis", "string?", "mesh axis that it communicates on"),
            Property("comm_bytes", "string?", "its input on one rank, an expression", "B"),
            Property("comm_out_bytes", "string?", "its output on one rank, an expression", "B"),
            Property("dtype", "string?", "class of the elements on the wire, or of what FLOPs are computed on"),
            Property(
                "peer", "string?", "a message inside a block: ranks of cp from here to its other end, an expression"
            ),
            PRESENT,
            Property("times", "string?", "how often it is unrolled, an expression"),
            Property("loop", "integer?", "order of the first op of its loop, which it is unrolled with"),
            Property("previous", "string[]", "tensors of the previous turn of its loop that it reads"),
            Property("bucket", "string?", "rule by which weights are grouped into buckets"),
            Property("semantics", "string", "what it computes, as JSON for the interpreter"),
            Property("origin", "string?", "gradients: the forward operator that it differentiates"),
            Property("part", "string?", "the part of a layer that it is in: attn or ffn"),
            Property("module", "string?", "the module of a layer whose call it is in"),
            _DEPTH,
            Property("experts", "string?", "its place in the module of a layer's experts: module, matmul or return"),
            Property("casts", "string?", "casts: the operand of a matmul: input, weight, weight_again or gradient"),
            Property("ring", "string?", "rings of cp: the operator whose turns it computes, or whose keys it sends"),
            Property("packed", "string?", "matmuls: the format in which their weight is stored in 4 bits"),
        ),
        indexes=(("graph", "block"),),
        style=("#f79767", "name"),
    ),
)

_SLOT = (Property("slot", "integer", "which input or output it is"),)
DEP_KIND = Property("kind", "string", "data, program (issue order) or limit (must not run ahead)")

GRAPH_RELATIONSHIPS = (
    Relationship("HAS_OP", "Graph", "SymOp", "The operators of the graph.", owns=True),
    Relationship("HAS_TENSOR", "Graph", "SymTensor", "The tensors of the graph.", owns=True),
    Relationship(
        "GRADIENT_OF",
        "SymTensor",
        "SymTensor",
        "A gradient of a weight, before and after each reduction over other axes than those of its buckets.",
    ),
    Relationship("READS", "SymOp", "SymTensor", "The op reads the tensor.", _SLOT),
    Relationship("WRITES", "SymOp", "SymTensor", "The op writes the tensor.", _SLOT),
    Relationship(
        "DEP",
        "SymOp",
        "SymOp",
        "The source runs before the target.",
        (
            NUMBER,
            DEP_KIND,
            Property(
                "hop", "string", "position of the source, seen from the target: same, turn, previous, next, block"
            ),
            PRESENT,
        ),
    ),
)

# Labels and relationships of instances. `stagedb instantiate` writes them.

MESH_AXES = ("tp", "cp", "dp", "ep", "pp")
RANK_GROUPS = (
    *("tp", "kv", "cp", "cpr", "cpa", "data", "dp", "dp_replicate", "dp_reshard", "ep", "epn", "epr", "edp"),
    *("pp", "embedding"),
)
"""Axes on which a rank may have a group."""

PLAN_WORDS = (
    *(
        Property(name, word.property_type, word.about.property, word.about.unit)
        for name, word in {**LAYOUT_WORDS, **FORMAT_WORDS}.items()
    ),
    *options(),
)
"""Every word of a plan. Words that a plan leaves open are filled in (`Plan.canonical`, layers by stage, batch)."""

LAYOUT = (
    Property(
        "class_table",
        "integer[]?",
        "the class of each stage and coordinates on cp, ep and dp, that of dp counted first; absent in older instances",
    ),
    Property("class_cp", "integer?", "coordinates on cp in `class_table`: 1 if all do the same work"),
    Property("class_ep", "integer?", "coordinates on ep in `class_table`: 1 if all do the same work"),
    Property("class_dp", "integer?", "coordinates on dp in `class_table`; absent if all do the same work"),
    Property("group_axes", "string[]?", "axes that have groups; the next six have a number for each of them"),
    Property("group_firsts", "integer[]?", "id of the first group; the others follow"),
    Property("group_counts", "integer[]?", "number of groups"),
    Property("group_sizes", "integer[]?", "ranks along the axis"),
    Property("group_strides", "integer[]?", "distance of neighbouring ranks along the axis"),
    Property("group_members", "integer[]?", "ranks of a group"),
    Property("group_steps", "integer[]?", "distance of neighbouring ranks of a group"),
    Property("ranks_written", "integer?", "ranks that have a node, from rank 0 on; absent: all"),
    Property("groups_written", "integer?", "groups that have a node, from the first one on; absent: all"),
)
"""From these numbers all ranks and groups follow; their nodes are written when a query asks for them."""

INSTANCE_LABELS = (
    Label(
        "Instance",
        "A graph under one plan: every size is a number. Every word of the plan is a property.",
        (
            id_of("digest of the graph's id and the plan"),
            Property("name", "string", "what it is called where nobody names it"),
            Property("graph", "string", "id of its graph"),
            *PLAN_WORDS,
            Property("microbatches", "integer", "micro-batches of a step on one rank of dp"),
            Property("world", "integer", "number of ranks", "ranks"),
            Property("plan", "string", "the plan as the user gave it, as canonical JSON"),
            Property("ranks_digest", "string?", "digest of its ranks as they were made; exports find what was changed"),
            Property("groups_digest", "string?", "digest of its groups"),
            Property("layout_digest", "string?", "digest of the numbers from which ranks and groups follow"),
            *LAYOUT,
            *OWNED,
        ),
        indexes=(("name",),),
        style=("#57c7e3", "name"),
    ),
    Label(
        "RankClass",
        "Ranks of an instance that do the same work; only their peers and communicators differ.",
        (
            id_of("instance id, `/`, class"),
            INSTANCE,
            Property("class", "integer", "its number in the instance"),
            Property("digest", "string", "digest of the evaluated work"),
            Property("stages", "integer[]", "pipeline stages of the class"),
            Property(
                "first_layers", "integer[]", "by stage and chunk: an op's `layer` plus this is its layer in the model"
            ),
            Property("layers", "integer", "layers of one stage"),
            Property("cp", "integer", "coordinate of its ranks on cp; 0 if all coordinates do the same work"),
            Property("ep", "integer", "coordinate of its ranks on ep; 0 if all coordinates do the same work"),
            Property("dp", "integer?", "coordinate of its ranks on dp; 0 if all coordinates do the same work"),
            Property("ranks", "integer", "number of ranks", "ranks"),
            Property("ops", "integer", "number of its ops"),
            Property("tasks", "integer", "number of its tasks"),
            Property("ops_digest", "string?", "digest of its ops as they were made; exports find what was changed"),
            Property("edges_digest", "string?", "digest of the edges between its ops"),
            Property("tasks_digest", "string?", "digest of its tasks"),
        ),
        style=("#ecb5c9", "class"),
    ),
    Label(
        "Op",
        "An operator of a rank class, for one micro-batch. Its second label is its type.",
        (
            id_of("unique in the store"),
            INSTANCE,
            Property("class", "integer", "number of its rank class"),
            Property("index", "integer", "its place among the ops of the class: by chunk, template and issue order"),
            Property("runs", "integer", "how often one rank runs it in a step"),
            Property("chunk", "integer", "part of the stage, if the stage holds several"),
            Property("template", "string", "forward, input_gradient, weight_gradient or step"),
            Property("position", "integer", "position of its block on the stage; messages are at -1 and n"),
            Property("order", "integer", "issue order inside the task"),
            Property("name", "string", "its name in the graph, with its layer and turn"),
            Property("sym", "string", "id of the symbolic op that it is a copy of"),
            Property("block", "string", "block of the symbolic op"),
            Property("layer", "integer?", "layer, counted over the chunks of the stage; absent outside layers"),
            Property("type", "string", "compute, collective, send or recv"),
            Property("kind", "string", f"what it does: matmul, attention, {ALL_GATHER.name} …"),
            Property("phase", "string", "forward, backward, recompute or optimizer"),
            Property("when", "string", "for which micro-batches it runs: every, first or last"),
            Property("flops", "integer", "of one run on one rank", "flop"),
            Property("bytes_read", "integer", "of one run on one rank", "B"),
            Property("bytes_written", "integer", "of one run on one rank", "B"),
            Property("temporary", "integer", "what it allocates only while it runs", "B"),
            Property(
                "dims",
                "integer[]?",
                "sizes of a matmul, an attention, a convolution or a scan; absent if experts have uneven loads",
            ),
            Property("fullest", "integer[]?", "in place of dims: sizes if all experts had the load of the fullest"),
            Property("axis", "string?", "mesh axis that it communicates on"),
            Property("comm_bytes", "integer?", "its input on one rank; a message's size", "B"),
            Property("comm_out_bytes", "integer?", "its output on one rank", "B"),
            Property("dtype", "string?", "format of the elements on the wire, or of what FLOPs are computed on"),
            Property("peer", "integer?", "stages from here to the other end of a message, around the ends too"),
        ),
        also=("Compute", "Collective", "Send", "Recv"),
        style=("#ffc454", "name"),
    ),
    Label(
        "Task",
        "A template run for one micro-batch, in the order of the pipeline schedule.",
        (
            id_of("unique in the store"),
            INSTANCE,
            Property("class", "integer", "number of its rank class"),
            Property("index", "integer", "place in the class's schedule"),
            Property("kind", "string", "forward, backward, input_gradient, weight_gradient or step"),
            Property("microbatch", "integer?", "which micro-batch; absent for the step"),
            Property("chunk", "integer", "part of the stage, if the stage holds several"),
            Property("first", "boolean", "its micro-batch is the first"),
            Property("last", "boolean", "its micro-batch is the last"),
        ),
        style=("#d9c8ae", "kind"),
    ),
    Label(
        "Rank",
        "One accelerator of an instance. Its properties join it to its class and groups: see above.",
        (
            id_of("instance id, `/`, rank"),
            INSTANCE,
            Property("rank", "integer", "global rank"),
            *(Property(axis, "integer", f"coordinate on the {axis} axis") for axis in MESH_AXES),
            Property("class", "integer", "number of its rank class"),
            *(
                Property(f"group_{axis}", "integer?", f"its group on the {axis} axis; absent if it has none")
                for axis in RANK_GROUPS
            ),
        ),
        unique=None,
        indexes=(("instance", "rank"),),
        member_by="instance",
        style=("#f16667", "rank"),
    ),
    Label(
        "Group",
        "Ranks that communicate with each other on one mesh axis.",
        (
            id_of("instance id, `/`, gid"),
            INSTANCE,
            Property("gid", "integer", "the communicator's id in the traces"),
            Property("axis", "string", "mesh axis"),
            Property("ranks", "integer[]", "global ranks, in the group's order"),
        ),
        style=("#569480", "axis"),
    ),
)

INSTANCE_RELATIONSHIPS = (
    Relationship("OF", "Instance", "Graph", "The graph that was instantiated."),
    Relationship("HAS_CLASS", "Instance", "RankClass", "The rank classes of the instance.", owns=True),
    Relationship("RUNS", "RankClass", "Op", "The operators that a rank of the class runs.", owns=True),
    Relationship("COPY_OF", "Op", "SymOp", "The symbolic operator that it is a copy of."),
    Relationship(
        "CARRIES",
        "Op",
        "SymTensor",
        "The collective carries the gradient or the parameters of this weight, alone or with others of its bucket.",
        (
            Property("number", "integer", "its place in the bucket, from 0"),
            Property("position", "integer", "position of the weight's block in its chunk"),
            Property("chunk", "integer?", "the weight's chunk; absent in older instances: that of the collective"),
            Property("layer", "integer?", "layer of the weight, counted over the chunks of the stage"),
        ),
    ),
    Relationship("DEP", "Op", "Op", "The source runs before the target, on the same rank.", (DEP_KIND,)),
    Relationship("SCHEDULES", "RankClass", "Task", "The tasks of a rank of the class.", owns=True),
    Relationship("NEXT", "Task", "Task", "The next task of the class's schedule."),
    Relationship(
        "FEEDS",
        "Task",
        "Task",
        "A task of one stage sends what the task of the neighbouring stage receives.",
        (
            Property("axis", "string", "mesh axis of the message"),
            Property("hop", "integer", "stages from sender to receiver: +1 or -1"),
        ),
    ),
    Relationship("HAS_GROUP", "Instance", "Group", "The communicator groups of the instance.", owns=True),
)

# Labels and relationships of profiles: a step's lanes, op times, task times and critical path.

_PROFILE = Property("profile", "string", "id of the profile that it belongs to")
_LANE = (
    _PROFILE,
    Property("lane", "integer", "number of the lane; lanes are in the order of their first ranks"),
    Property("class", "integer", "number of its rank class"),
    Property("stage", "integer", "pipeline stage"),
    Property("rank", "integer", "the smallest rank of the lane"),
)

PROFILE_LABELS = (
    Label(
        "Profile",
        "A step of an instance, timed on one system.",
        (
            id_of("digest of the instance's id, the system, measured durations, scalings and blocking axes"),
            INSTANCE,
            Property("name", "string?", "what it is called where nobody names it"),
            Property("system", "string", "the system's name"),
            Property("system_json", "string", "the whole system, as JSON"),
            Property("durations", "string?", "measured durations that replaced modelled ones, as JSON"),
            Property("scalings", "string[]", "durations that were scaled, such as `collective:tp=0.5`"),
            Property("blocking", "string[]?", "mesh axes whose communication a rank waits for before it goes on"),
            Property("format", "integer", "version of the stored form"),
            Property("step", "integer", "length of the step", "ns"),
            Property("unscaled", "integer", "length of the step without the scalings", "ns"),
            Property("world", "integer", "number of ranks", "ranks"),
            Property("tokens", "integer", "tokens of a step", "tokens"),
            Property("tokens_per_second", "float?", "of all ranks; absent for a step of no time", "tokens/s"),
            Property("tokens_per_second_per_accelerator", "float?", "of one rank", "tokens/s"),
            Property("model_flops", "float", "of all ranks in a step, without recomputing", "flop"),
            Property("hardware_flops", "float", "of all ranks in a step, with recomputing", "flop"),
            Property("dtype", "string?", "the format that most FLOPs are computed in"),
            Property("peak", "float?", "of one accelerator in that format; absent if it has no bound", "flop/s"),
            Property("bandwidth", "float?", "of one accelerator's memory; absent if it has no bound", "B/s"),
            Property("dimensions", "string[]?", "of the system's network, innermost first"),
            Property(
                "dimension_bandwidths",
                "float[]?",
                "what one accelerator sends into each of them in one direction; 0 if it has no bound",
                "B/s",
            ),
            Property("mfu", "float?", "model FLOPs over what the peaks would do in the step", "ratio"),
            Property("hfu", "float?", "hardware FLOPs over what the peaks would do in the step", "ratio"),
            Property(
                "memory", "integer?", "what its fullest rank holds at its peak; absent if an older stagedb made it", "B"
            ),
            Property("room", "integer?", "memory of one accelerator for tensors; absent if it has no bound", "B"),
            Property("measured_ops", "float", "share of the ops' runs that was measured", "ratio"),
            Property("measured_time", "float", "share of the modelled time that was measured", "ratio"),
            Property("content", "string?", "digest of its content as it was made; absent in older ones"),
            *OWNED,
        ),
        indexes=(("name",), ("system",)),
        style=("#f79767", "system"),
    ),
    Label(
        "LaneTime",
        "The step of a lane: ranks of one class and stage with the same times. "
        "Busy, exposed, bubble and idle add up to the step.",
        (
            id_of("profile id, `/`, lane"),
            *_LANE,
            Property("ranks", "integer", "number of ranks with these times", "ranks"),
            Property("busy", "integer", "computing", "ns"),
            Property("exposed", "integer", "communicating while nothing is computed", "ns"),
            Property("bubble", "integer", "waiting for other stages, also at the step's end", "ns"),
            Property(
                "idle", "integer", "waiting for ranks of its own stage or for its host, and all remaining time", "ns"
            ),
            Property("communication", "integer", "communicating, hidden or not", "ns"),
        ),
        style=("#b9739a", "stage"),
    ),
    Label(
        "OpTime",
        "An op in the step of a lane: the time of one run, and of all its runs together.",
        (
            id_of("profile id, `/`, lane, `/`, the op's index"),
            *_LANE,
            INSTANCE,
            Property("ranks", "integer", "ranks of the lane", "ranks"),
            Property("op", "string", "id of the op"),
            Property("index", "integer", "index of the op in its class"),
            Property("name", "string", "name of the op"),
            Property("type", "string", "compute, collective, send or recv"),
            Property("kind", "string", f"what it does: matmul, attention, {ALL_GATHER.name} …"),
            Property("phase", "string", "forward, backward, recompute or optimizer"),
            Property("axis", "string?", "mesh axis that it communicates on"),
            Property("block", "string", "block of the symbolic op"),
            Property("layer", "integer?", "number of the layer in the model; absent outside layers"),
            Property("chunk", "integer", "part of the stage, if the stage holds several"),
            Property("dtype", "string?", "format of the elements on the wire, or of what FLOPs are computed on"),
            Property("flops", "integer", "of one run on one rank", "flop"),
            Property("bytes", "integer", "read and written in one run on one rank", "B"),
            Property("message", "integer", "operand of one run's communication on one rank", "B"),
            Property("duration", "integer", "of one run; 0 for a receive", "ns"),
            Property("count", "integer", "runs in a step on one rank"),
            Property(
                "total",
                "integer",
                "of all runs, without waits for the host; a collective begins when its last member arrives",
                "ns",
            ),
            Property("exposed", "integer", "communication while nothing is computed, all runs together", "ns"),
            Property("slack", "integer", "the least delay of a run that makes the step longer; -1: no run", "ns"),
            Property("critical", "integer", "of the runs on the critical path", "ns"),
            Property("times_critical", "integer", "runs on the critical path"),
            Property("rule", "string", "source of the duration: `roofline:compute`, `ring`, `measured` …; empty: none"),
            Property("dimension", "string?", "the slowest network dimension that it crosses"),
            Property("wires", "string[]?", "for a sender: every network dimension that it crosses, innermost first"),
            Property("wire_bytes", "integer[]?", "what one rank sends into each of them in one run, on average", "B"),
        ),
        style=("#4c8eda", "name"),
    ),
    Label(
        "TaskTime",
        "A task in the step of a lane.",
        (
            id_of("profile id, `/`, lane, `/t`, index"),
            *_LANE,
            Property("index", "integer", "place in the class's schedule"),
            Property("kind", "string", "forward, backward, input_gradient, weight_gradient or step"),
            Property("microbatch", "integer?", "which micro-batch; absent for the step"),
            Property("chunk", "integer", "part of the stage, if the stage holds several"),
            Property("start", "integer", "when its first op begins", "ns"),
            Property("finish", "integer", "when its last op ends", "ns"),
            Property("slack", "integer", "the least slack of its ops", "ns"),
            Property("critical", "integer", "of its ops' runs on the critical path", "ns"),
        ),
        style=("#a68a5c", "kind"),
    ),
    Label(
        "Leg",
        "A stretch of the critical path inside one task of one lane. All legs together are as long as the step.",
        (
            id_of("profile id, `/l`, number"),
            *_LANE,
            Property("number", "integer", "its place on the path, from 0"),
            Property("start", "integer", "when it begins", "ns"),
            Property("finish", "integer", "when it ends", "ns"),
            Property("ns", "integer", "its length", "ns"),
            Property("reason", "string", "why it did not begin earlier: start, dependency, stream, member or message"),
        ),
        style=("#f16667", "number"),
    ),
    Label(
        "Segment",
        "A sequence of ops on the critical path. Legs that run the same ops in the same time share one.",
        (
            id_of("profile id, `/s`, its number"),
            *_LANE,
            Property("ops", "integer", "number of its ops"),
            Property("ns", "integer", "its length", "ns"),
        ),
        style=("#c990c0", "ops"),
    ),
)

PROFILE_RELATIONSHIPS = (
    Relationship("OF", "Profile", "Instance", "The instance that was timed."),
    Relationship("HAS_LANE", "Profile", "LaneTime", "The lanes of the step.", owns=True),
    Relationship("OF", "LaneTime", "RankClass", "The class that the ranks of the lane are in."),
    Relationship("HAS_OP_TIME", "LaneTime", "OpTime", "The ops of the lane.", owns=True),
    Relationship("OF", "OpTime", "Op", "The op that was timed."),
    Relationship("HAS_TASK_TIME", "LaneTime", "TaskTime", "The tasks of the lane.", owns=True),
    Relationship("OF", "TaskTime", "Task", "The task that was timed."),
    Relationship("HAS_LEG", "Profile", "Leg", "The legs of the critical path.", owns=True),
    Relationship("FIRST_LEG", "Profile", "Leg", "Where the critical path begins."),
    Relationship("NEXT_LEG", "Leg", "Leg", "The next leg of the critical path."),
    Relationship("IN_TASK", "Leg", "TaskTime", "The task that the leg is a part of."),
    Relationship("HAS_SEGMENT", "Profile", "Segment", "The segments that legs consist of.", owns=True),
    Relationship("FILLED_BY", "Leg", "Segment", "The ops that fill the leg."),
    Relationship(
        "CONTAINS",
        "Segment",
        "OpTime",
        "An op of the segment.",
        (
            Property("number", "integer", "its place in the segment, from 0"),
            Property("ns", "integer", "its time on the path in one run", "ns"),
        ),
    ),
)

# Labels and relationships of memory over a step. `stagedb memory` writes them.

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

# Labels and relationships of searches: what was asked, and every plan that was tried or ruled out.

TERMS: dict[str, str] = {
    "compute": "term_compute",
    "bubble": "term_bubble",
    "idle": "term_idle",
    **{f"exposed {axis}": f"exposed_{axis}" for axis in RANK_GROUPS},
}
"""The terms of a step, each with its property of `Candidate`."""

_MEANINGS = {
    "compute": "computing",
    "bubble": "waiting for other stages",
    "idle": "waiting for ranks of the same stage or for the host, and all remaining time",
}

_EXPOSED = "communication that nothing hides"

CHOSEN_WORDS = tuple(Property(row.name, f"{row.type.rstrip('?')}?", row.description, row.unit) for row in PLAN_WORDS)
"""The words that a search may choose. A candidate has those that differ from plan to plan."""

SEARCH_LABELS = (
    Label(
        "Search",
        "A search over the plans of a model: what was asked, and what came out. One that ended before its time is "
        "unfinished, and the same search goes on with what it has. A shard of a search is one, too, of a part of the "
        "plans.",
        (
            id_of("digest of what was asked"),
            Property("model", "string", "the model's name"),
            Property("systems", "string[]", "names of the systems"),
            Property("ranks", "integer[]", "numbers of ranks that were searched", "ranks"),
            Property("seq_len", "integer?", "length of a sequence", "tokens"),
            Property("global_batch_size", "integer?", "sequences of a step", "sequences"),
            Property("by", "string", "what is best: step, memory, bytes, tokens_per_dollar or tokens_per_joule"),
            Property("allow", "string[]", "groups of words that vary in addition to degrees and the micro-batch"),
            Property("room", "integer?", "memory of an accelerator; absent: that of each system", "B"),
            Property("condition", "string?", "what plans must fulfil, such as `tp <= 8 and peak < 76e9`"),
            Property(
                "top",
                "integer",
                "number of best plans on each number of ranks, of which no two differ only in what recomputes",
            ),
            Property("request", "string", "all that was asked, as JSON"),
            Property("format", "integer", "version of the stored form"),
            Property("size", "integer", "plans whose degrees divide"),
            Property("timed", "integer", "plans that were timed"),
            Property("covered", "boolean", "every plan was tried or ruled out by a bound: the first one is the best"),
            Property("step", "integer?", "step of the best plan; absent if none that fits was found", "ns"),
            Property("peak", "integer?", "what the fullest rank of the best plan holds", "B"),
            Property("left", "integer?", "no plan that was not tried has a shorter step; absent if all were", "ns"),
            Property("seconds", "float", "time of the search", "s"),
            Property("content", "string", "digest of its candidates as they were found"),
            Property("shards", "integer?", "of a shard, and of a search that was merged: how many shards there are"),
            Property("finished", "integer[]?", "of a search that was merged: numbers of the finished shards, from 1"),
            Property("whole", "string?", "of a shard: id of the search; `covered` and what was found are of its plans"),
            Property("shard", "integer?", "of a shard: its number, from 1"),
            Property(
                "limits",
                "float[]?",
                "of a shard: what its best plans on each number of ranks have of what is to be small, ascending",
            ),
            Property("limit_ranks", "integer[]?", "on how many ranks each of these is, if there are several", "ranks"),
            *OWNED,
        ),
        indexes=(("model",),),
        style=("#8dcc93", "model"),
    ),
    Label(
        "Candidate",
        "A plan that a search tried, or a set of plans that it ruled out together. It has the words that the search "
        "chose; those of all plans are in `request` of the search.",
        (
            id_of("search id, `/`, digest of system, ranks and words"),
            Property("place", "integer?", "its place, from 0, the best first; absent while the search runs"),
            Property("fate", "string", "timed, memory, slower, filtered, refused or untried"),
            Property("system", "string", "the system's name"),
            Property("ranks", "integer", "size of the world", "ranks"),
            Property("plans", "integer", "plans that it represents; 1 for a plan"),
            Property("step", "integer", "length of the step if `timed`, otherwise a lower bound", "ns"),
            Property("peak", "integer", "what the fullest rank holds if `timed`, otherwise a lower bound", "B"),
            Property(
                "sent",
                "integer?",
                "what a rank sends at most in a step if `timed`, otherwise a lower bound; absent if not counted",
                "B",
            ),
            Property(
                "code",
                "string?",
                "why it loses: a term, bytes, memory, filtered, refused, untried; or `best`, `equal`",
            ),
            Property("why", "string?", "the same as a sentence; of a plan that is refused, the reason"),
            Property("instance", "string?", "id of the instance of this plan, for the best plans"),
            *CHOSEN_WORDS,
            *(
                Property(
                    name,
                    "integer?",
                    f"{_MEANINGS.get(term, _EXPOSED)}: mean of all ranks if `timed`, otherwise of the step's bound",
                    "ns",
                )
                for term, name in TERMS.items()
            ),
        ),
        indexes=(("instance",),),
        style=("#d9c8ae", "code"),
    ),
)

SEARCH_RELATIONSHIPS = (
    Relationship("TRIED", "Search", "Candidate", "The plans that it tried, and the sets that it ruled out.", owns=True),
    Relationship("MADE", "Candidate", "Instance", "The instance of this plan, if the store has it."),
)
