"""Labels and relationships of instances. `stagedb instantiate` writes them."""

from stagedb.collectives import ALL_GATHER
from stagedb.plans.aspects import FORMAT_WORDS, LAYOUT_WORDS
from stagedb.store.graph_labels import DEP_KIND, options
from stagedb.store.schema_forms import INSTANCE, OWNED, Label, Property, Relationship, id_of

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
            Property("name", "string", "its name, given by the user"),
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
