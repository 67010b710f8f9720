"""Labels and relationships of symbolic graphs. `stagedb build` writes them."""

from stagedb.collectives import ALL_GATHER
from stagedb.models.kinds import PARTS
from stagedb.plans.aspects import GRAPH_WORDS
from stagedb.store.schema_forms import OWNED, Label, Property, Relationship, id_of

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
