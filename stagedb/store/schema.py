"""The store's schema as one table: from it come the constraints, the indexes and the data-model page of the docs.

Only what Neo4j's Community Edition has: uniqueness constraints and range indexes. Membership (`graph`, `instance`) is
an indexed property, not an edge to a hub. Every label that other code matches has its key here.
"""

from itertools import chain

from stagedb.store.forms import INSTANCE, OWNED, Label, Property, Relationship, id_of
from stagedb.store.profile_labels import PROFILE_RELATIONSHIPS, PROFILES

_NUMBER = Property("number", "integer", "its place in the graph")
_GRAPH = Property("graph", "string", "id of the graph it belongs to")
_PRESENT = Property("present", "string?", "it exists where this expression is above 0; absent: always")

FIRST = (
    Label(
        "Store",
        "What this database is: one node, written by the migrations.",
        (
            id_of("`stagedb`"),
            Property("version", "integer", "number of the newest migration applied"),
            Property("created", "integer", "when the first migration was applied", "ms since 1970"),
        ),
    ),
    Label(
        "Graph",
        "A symbolic tensor graph: a model under one strategy and one recipe, every degree and size a symbol.",
        (
            id_of("digest of what the graph was made from"),
            Property("name", "string", "the model's name"),
            Property("recipe", "string", "the framework whose habits it follows"),
            Property("options", "string", "the options that shaped it, as JSON"),
            Property("sizes", "string", "the model's symbols and their values, as JSON"),
            Property("blocks", "string", "the blocks and how often each repeats, in forward order, as JSON"),
            Property("format", "integer", "version of the stored form"),
            *OWNED,
        ),
    ),
    Label(
        "SymTensor",
        "A tensor of one block of a graph.",
        (
            id_of("graph id, `/`, name"),
            _GRAPH,
            Property("name", "string", "unique in the graph"),
            _NUMBER,
            Property("block", "string", "the block it is in"),
            Property("role", "string", "input, weight, activation, gradient, optimizer_state or buffer"),
            Property("dtype", "string", "class of its elements, which a plan resolves"),
            Property("axes", "string[]", "logical axes"),
            Property("shape", "string[]", "global size of each axis, as expressions"),
            Property("local", "string[]", "size of each axis on one rank, as expressions"),
            Property("layout", "string[]", "how it lies on each mesh axis, such as `tp:partitioned(hidden)`"),
            Property("bytes", "string", "size on one rank, an expression", "B"),
            Property("order", "integer?", "weights: order of registration in the block"),
            Property("elements", "string?", "weights: number of elements on one rank, an expression"),
            Property("rows", "integer?", "weights that dp shards: how many of the first axes are cut as one"),
            Property("shard", "string?", "weights that dp shards: elements of one rank's part, an expression"),
            Property("gathers", "string[]?", "weights that dp shards: bucket ops that put the parts together"),
            Property("readers", "string[]?", "weights that dp shards: ops that read it"),
            Property("buckets", "string[]", "weights: ops whose bucket its gradient joins, in order"),
            Property("grads", "string[]", "weights: ops that produce its gradient"),
            Property("tied", "string?", "the weight that it shares its values with"),
            Property("storage", "string?", "the tensor whose bytes it takes over; absent: it has its own"),
            Property("kept", "boolean", "it is held for the backward whatever reads it there"),
            _PRESENT,
            Property("repeats", "string?", "the tensor it is computed again of; where it is absent, readers read that"),
        ),
        indexes=(("graph",),),
    ),
    Label(
        "SymOp",
        "An operator of one block of a graph, its costs on one rank as expressions.",
        (
            id_of("graph id, `/`, name"),
            _GRAPH,
            Property("name", "string", "unique in the graph"),
            _NUMBER,
            Property("block", "string", "the block it is in, `cut` for messages between stages, or `bucket`"),
            Property("template", "string", "forward, input_gradient, weight_gradient or step"),
            Property("type", "string", "compute, collective, send or recv"),
            Property("kind", "string", "what it does: matmul, attention, all_gather …"),
            Property("phase", "string", "forward, backward, recompute or optimizer"),
            Property("when", "string", "for which microbatches it runs: every, first or last"),
            Property("order", "integer", "issue order inside its block and template"),
            Property("flops", "string", "an expression", "flop"),
            Property("bytes_read", "string", "an expression", "B"),
            Property("bytes_written", "string", "an expression", "B"),
            Property("temporary", "string", "what it holds beside while it runs, an expression", "B"),
            Property("dims", "string[]", "sizes of a matmul or an attention, as expressions"),
            Property("axis", "string?", "mesh axis it communicates on"),
            Property("comm_bytes", "string?", "its input on one rank, an expression", "B"),
            Property("comm_out_bytes", "string?", "its output on one rank, an expression", "B"),
            Property("dtype", "string?", "class of the elements on the wire, or of what FLOPs are computed on"),
            Property(
                "peer", "string?", "a message inside a block: ranks of cp from here to its other end, an expression"
            ),
            _PRESENT,
            Property("times", "string?", "how often it is unrolled, an expression"),
            Property("loop", "integer?", "order of the first op of its loop, which it is unrolled with"),
            Property("previous", "string[]", "tensors that it reads as the loop's turn before left them"),
            Property("bucket", "string?", "rule by which it is multiplied into buckets"),
            Property("semantics", "string", "what it computes, as JSON for the interpreter"),
        ),
        indexes=(("graph",), ("graph", "block")),
    ),
    Label(
        "Instance",
        "A graph under one plan: every size a number.",
        (
            id_of("digest of the graph's id and the plan"),
            Property("name", "string", "what its maker called it"),
            Property("graph", "string", "id of its graph"),
            Property("plan", "string", "the plan, as JSON"),
            Property("world", "integer", "ranks", "ranks"),
            *OWNED,
        ),
        indexes=(("graph",),),
    ),
    Label(
        "RankClass",
        "Ranks of an instance whose work differs in peers and communicators alone.",
        (
            id_of("instance id, `/`, class"),
            INSTANCE,
            Property("class", "integer", "its number in the instance"),
            Property("digest", "string", "digest of the evaluated work"),
            Property("stages", "integer[]", "pipeline stages in the class"),
            Property(
                "first_layers",
                "integer[]",
                "of each of these stages, chunk after chunk: what makes an op's `layer` its number in the model",
            ),
            Property("layers", "integer", "layers of one stage"),
            Property("ranks", "integer", "number of ranks", "ranks"),
            Property("ops", "integer", "number of its ops"),
            Property("tasks", "integer", "number of its tasks"),
        ),
        indexes=(("instance",),),
    ),
    Label(
        "Op",
        "An operator of a rank class, for one microbatch. It has a second label by its type.",
        (
            id_of("unique in the store"),
            INSTANCE,
            Property("class", "integer", "number of its rank class"),
            Property("chunk", "integer", "part of the stage, where a stage holds several"),
            Property("template", "string", "forward, input_gradient, weight_gradient or step"),
            Property("position", "integer", "position of its block on the stage; messages stand at -1 and n"),
            Property("order", "integer", "issue order inside the task"),
            Property("name", "string", "its name in the graph"),
            Property("sym", "string", "id of the symbolic op it is a copy of"),
            Property("block", "string", "block of the symbolic op"),
            Property("layer", "integer?", "layer, counted over the chunks of the stage; absent outside layers"),
            Property("type", "string", "compute, collective, send or recv"),
            Property("kind", "string", "what it does: matmul, attention, all_gather …"),
            Property("phase", "string", "forward, backward, recompute or optimizer"),
            Property("when", "string", "for which microbatches it runs: every, first or last"),
            Property("flops", "integer", "of one rank", "flop"),
            Property("bytes_read", "integer", "of one rank", "B"),
            Property("bytes_written", "integer", "of one rank", "B"),
            Property(
                "dims",
                "integer[]?",
                "sizes of a matmul or an attention; none of experts that have unequally many tokens",
            ),
            Property("axis", "string?", "mesh axis it communicates on"),
            Property("comm_bytes", "integer?", "its input on one rank; a message's size", "B"),
            Property("comm_out_bytes", "integer?", "its output on one rank", "B"),
            Property("dtype", "string?", "format of the elements on the wire, or of what FLOPs are computed on"),
            Property(
                "peer",
                "integer?",
                "stages from here to the other end of a message; more than one where it goes around the ends",
            ),
        ),
        indexes=(("instance",), ("instance", "class")),
        also=("Compute", "Collective", "Send", "Recv"),
    ),
    Label(
        "Task",
        "A template run for one microbatch, in the order of the pipeline schedule.",
        (
            id_of("unique in the store"),
            INSTANCE,
            Property("class", "integer", "number of its rank class"),
            Property("index", "integer", "place in the class's schedule"),
            Property("kind", "string", "forward, backward, input_gradient, weight_gradient or step"),
            Property("microbatch", "integer?", "which microbatch; absent for the step"),
            Property("chunk", "integer", "part of the stage, where a stage holds several"),
            Property("first", "boolean", "its microbatch is the first"),
            Property("last", "boolean", "its microbatch is the last"),
        ),
        indexes=(("instance",), ("instance", "class")),
    ),
    Label(
        "Rank",
        "One accelerator of an instance.",
        (
            id_of("unique in the store"),
            INSTANCE,
            Property("rank", "integer", "global rank"),
            *(Property(axis, "integer", f"coordinate on the {axis} axis") for axis in ("tp", "cp", "dp", "ep", "pp")),
            Property("class", "integer", "number of its rank class"),
            *(
                Property(f"group_{axis}", "integer?", f"its group on the {axis} axis, if it has one")
                for axis in (
                    "tp",
                    "kv",
                    "cp",
                    "cpr",
                    "cpa",
                    "data",
                    "dp",
                    "dp_replicate",
                    "ep",
                    "edp",
                    "pp",
                    "embedding",
                )
            ),
        ),
        indexes=(("instance",), ("instance", "rank")),
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
        indexes=(("instance",),),
    ),
)

MEMORY = (
    Label(
        "Memory",
        "What a rank of one class holds in memory over a step; made by `stagedb memory`.",
        (
            id_of("instance id, `/`, class"),
            INSTANCE,
            Property("class", "integer", "number of its rank class"),
            Property("peak", "integer", "the most that it holds at once", "B"),
            Property("phase", "string", "when: forward, backward or optimizer"),
            Property("task", "integer", "index of the task that runs then"),
            Property("microbatch", "integer?", "its microbatch; absent for the step"),
            Property("op", "string?", "id of the op that runs then; absent at a task's end"),
            Property("name", "string", "name of that op"),
        ),
        indexes=(("instance",),),
    ),
    Label(
        "MemoryLevel",
        "Bytes of one category that a rank of one class holds at one moment of a step.",
        (
            id_of("instance id, `/`, class, `/`, moment, `/`, category"),
            INSTANCE,
            Property("class", "integer", "number of its rank class"),
            Property(
                "moment",
                "string",
                "start, forward_end, backward_end, step_end, forward_peak, backward_peak, optimizer_peak or peak",
            ),
            Property("category", "string", "parameters, gradients, optimizer_state, activations …"),
            Property("bytes", "integer", "held then", "B"),
        ),
        indexes=(("instance",), ("instance", "class")),
    ),
    Label(
        "MemoryTensor",
        "Tensors of one name that live at the peak of a rank class.",
        (
            id_of("instance id, `/`, class, `/`, its place by size"),
            INSTANCE,
            Property("class", "integer", "number of its rank class"),
            Property("name", "string", "the tensor's name in the graph, or that of a buffer"),
            Property("layer", "integer?", "layer, counted over the chunks of the stage; absent outside layers"),
            Property("category", "string", "what it is held for"),
            Property("count", "integer", "how many of it live: one a microbatch in flight"),
            Property("bytes", "integer", "of all of them together", "B"),
        ),
        indexes=(("instance",), ("instance", "class")),
    ),
)
"""Made by analysis, and deleted with their instance."""

LABELS = (*FIRST, *MEMORY, *PROFILES)

_SLOT = (Property("slot", "integer", "which input or output it is"),)
_KIND = Property("kind", "string", "data, program (issue order) or limit (must not run ahead)")

RELATIONSHIPS = (
    Relationship("READS", "SymOp", "SymTensor", "The op reads the tensor.", _SLOT),
    Relationship("WRITES", "SymOp", "SymTensor", "The op writes the tensor.", _SLOT),
    Relationship(
        "DEP",
        "SymOp",
        "SymOp",
        "The source runs before the target.",
        (
            _NUMBER,
            _KIND,
            Property("hop", "string", "where the source stands: same, turn, previous, next or block"),
            _PRESENT,
        ),
    ),
    Relationship("DEP", "Op", "Op", "The source runs before the target, on the same rank.", (_KIND,)),
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
    *PROFILE_RELATIONSHIPS,
)


def definitions(labels: tuple[Label, ...] = LABELS) -> tuple[str, ...]:
    """The statements that make the constraints and indexes of labels. Each may be run again."""
    return tuple(chain.from_iterable(_definitions(label) for label in labels))


def _definitions(label: Label) -> tuple[str, ...]:
    low = label.name.lower()
    return (
        f"CREATE CONSTRAINT {low}_{label.unique} IF NOT EXISTS FOR (n:{label.name}) REQUIRE n.{label.unique} IS UNIQUE",
        *(
            f"CREATE INDEX {low}_{'_'.join(keys)} IF NOT EXISTS FOR (n:{label.name}) "
            f"ON ({', '.join(f'n.{key}' for key in keys)})"
            for keys in label.indexes
        ),
    )


def page() -> str:
    """The data model as Markdown: a table a label, a table of relationships."""
    lines: list[str] = []
    for label in LABELS:
        keys = [f"`{label.unique}` (unique)", *(f"`{', '.join(names)}`" for names in label.indexes)]
        lines += [f"## :{label.name}", "", label.description, ""]
        if label.also:
            lines += [f"Also labelled one of {', '.join(f'`:{name}`' for name in label.also)}.", ""]
        lines += [f"Indexed: {'; '.join(keys)}.", "", *_table(label.properties), ""]
    lines += ["## Relationships", ""]
    for edge in RELATIONSHIPS:
        lines += [f"### (:{edge.source})-[:{edge.type}]->(:{edge.target})", "", edge.description, ""]
        lines += [*_table(edge.properties), ""] if edge.properties else []
    return "\n".join(lines).rstrip() + "\n"


def _table(properties: tuple[Property, ...]) -> list[str]:
    return [
        "| property | type | unit | is |",
        "|---|---|---|---|",
        *(f"| `{row.name}` | {row.type} | {row.unit or ''} | {row.description} |" for row in properties),
    ]
