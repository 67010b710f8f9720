"""Recorded models checked: a config is read by the ordinary path, and its graph is compared with the model's own code.

Parameters are compared in all and by kind, and the matmuls of a forward as a multiset of dimensions, all as integers.
So are those of a step of decoding, and the bytes of its cache, where a record has them.
Where that code writes the same work in another way, a named rule of `RULES` changes stagedb's rows.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import read_document, shown
from stagedb.graphs.model_graph import build_graph, on_one_rank
from stagedb.ir.expressions import evaluate, number
from stagedb.ir.operators import KEYS, load
from stagedb.ir.operators.gated_recurrence import BeforeConvolution
from stagedb.ir.operators.state_space import ChunkedScan, KeepsState
from stagedb.ir.symbolic_graph import Compute, SymGraph, SymOp, SymTensor
from stagedb.mentions import Word
from stagedb.models import Card, from_hugging_face
from stagedb.plans.graph_options import GraphOptions
from stagedb.workflows.serving import DECODE

# Recorded models: what a model's own code has as parameters, and the matmuls of its forward and of a step of decoding.
#
# The format is that of `tests/validation/models.json`: a list of records with `name`, `config` (a Hugging Face config),
# `parameters`, `parameters_by_name` (elements, with layer and expert numbers as `*`), and `forward`, the matmuls of one
# forward of `batch` sequences of `seq` tokens on one rank: `op`, `dims`, `count`. A record may have `decode`, those of
# a step that adds a token to each of these sequences, and `kv_cache_bytes`, the cache of their tokens in 2-byte values.
# Where parameters alone are compared a record needs `config` and `parameters`.

LARGEST = 256 << 20
"""Bytes of a file of recorded models."""

Row = tuple[str, tuple[int, ...]]
"""A matmul: `mm`, `bmm` or `grouped`, and its dimensions."""

KINDS: tuple[tuple[str, str], ...] = (
    ("norm", r"norm|\bln_|\.ln_"),
    ("embedding", r"embed_tokens|tokens_embed|\bwte\b|word_embeddings|\bembeddings\.weight|embed_in\b|tok_embeddings"),
    ("positions", r"embed_positions|positions_embed|\bwpe\b|position_embeddings"),
    ("head", r"lm_head|embed_out|output_projection"),
    ("streams", r"\b(attn|ffn)_hc\b|hc_head"),
    ("shared experts", r"shared(?!_transformer)"),
    ("router", r"experts\.router\.layer"),
    ("attention", r"attention\.experts\.bias"),
    ("experts", r"experts|mlp\.(input|output)_linear"),
    ("router", r"\brouter\b|\.gate\.|\.wg\.|router\.layer|\bexpert_bias"),
    (
        "attention",
        r"attn|attention|mamba|temporal_block|\.conv\."
        r"|mixer\.([qkvo]_proj|(in|out|x|dt)_proj|conv1d|A_log|D$|dt_bias)",
    ),
    ("feed-forward", r"mlp|mixer|feed_forward|ffn|\.fc\d"),
)
"""Kinds of parameters, each with the words of its names in model code. The first that is found decides."""


@dataclass(frozen=True)
class RecordedModel:
    """A model as its own code has it.

    config: its Hugging Face config. parameters: elements of all parameters. kinds: elements by kind of parameter; empty
    if they were not recorded by name. forward: matmuls of a forward, each with its count. batch, seq: sequences, and
    tokens of each, in the forward. decode: matmuls of a step of decoding; empty if none was recorded. cache: bytes of
    the cache of all tokens; None: not recorded.
    """

    name: str
    config: Mapping[str, Any]
    parameters: int
    kinds: Mapping[str, int]
    forward: Mapping[Row, int]
    batch: int
    seq: int
    decode: Mapping[Row, int] = field(default_factory=dict)
    cache: int | None = None


def read_models(path: Path, parameters_alone: bool = False) -> list[RecordedModel]:
    """The records of a file. UsageError, with the place, for one that is not in the format.

    parameters_alone: what else a record has is left out, and need not be there.
    """
    content = read_document(path, "recorded models", (".json",), LARGEST, str(Word("models")), constants=True)
    if not isinstance(content, list):
        raise UsageError(f"{path}: recorded models are a list, not {shown(content)}")
    read = parameters_of if parameters_alone else record_of
    return [read(each, f"{path}: record {number}") for number, each in enumerate(content, start=1)]


def parameters_of(content: object, where: str) -> RecordedModel:
    """The parameters of the record in a mapping, by name if it has them so. where: its place, for errors.

    UsageError for a record without a config or parameters. content: the mapping.
    """
    content = _mapping(content, where)
    config, named = content.get("config"), content.get("parameters_by_name", {})
    if not isinstance(config, Mapping) or not isinstance(named, Mapping):
        raise UsageError(f"{where} lacks a mapping config or parameters_by_name")
    kinds: Counter[str] = Counter()
    for name, elements in named.items():
        kinds[kind_of(str(name))] += _count(elements, f"{where}: parameters of {shown(name)}", 0)
    name, parameters = content.get("name"), _count(content.get("parameters"), f"{where}: parameters")
    return RecordedModel(name if isinstance(name, str) else where, config, parameters, dict(kinds), {}, 1, 1)


def record_of(content: object, where: str) -> RecordedModel:
    """The record in a mapping. where: its place, for errors.

    content: the mapping. UsageError for one that is not in the format.
    """
    content = _mapping(content, where)
    if "parameters_by_name" not in content:
        raise UsageError(
            f"{where} lacks parameters_by_name: without them {Word('parameters_alone')} compares their sum"
        )
    made = parameters_of(content, where)
    forward, cache = _rows(content, "forward", where), content.get("kv_cache_bytes")
    return replace(
        made,
        forward=forward,
        batch=_count(content.get("batch"), f"{where}: batch"),
        seq=_count(content.get("seq"), f"{where}: seq"),
        decode=_rows(content, "decode", where) if "decode" in content else {},
        cache=None if cache is None else _count(cache, f"{where}: kv_cache_bytes"),
    )


def _mapping(content: object, where: str) -> Mapping[str, Any]:
    if not isinstance(content, Mapping):
        raise UsageError(f"{where} must be a mapping, not {shown(content)}")
    return content


def kind_of(name: str) -> str:
    """The kind of a parameter, by its name in model code."""
    return next((kind for kind, words in KINDS if re.search(words, name)), "others")


def _rows(content: Mapping[str, Any], word: str, where: str) -> dict[Row, int]:
    """The matmuls under a word of a record, each with its count."""
    rows = content.get(word)
    if not isinstance(rows, list):
        raise UsageError(
            f"{where}: {word} must be a list of matmuls, not {shown(rows)}: without matmuls {Word('parameters_alone')} "
            "compares the rest"
        )
    found: Counter[Row] = Counter()
    for row in rows:
        found[_row(row, where)] += _count(row.get("count"), f"{where}: count")
    return dict(found)


def _row(row: object, where: str) -> Row:
    dims = row.get("dims") if isinstance(row, Mapping) else None
    if not isinstance(row, Mapping) or not isinstance(dims, list) or not isinstance(row.get("op"), str):
        raise UsageError(f"{where}: a matmul has op, dims and count, not {shown(row)}")
    flat = [each for part in dims for each in (part if isinstance(part, list) else [part])]
    return row["op"], tuple(_count(each, f"{where}: dims") for each in flat)


def _count(value: object, where: str, least: int = 1) -> int:
    if type(value) is not int or value < least:
        raise UsageError(f"{where} must be a whole number from {least}, not {shown(value)}")
    return value


Rows = Counter[Row]


@dataclass(frozen=True)
class ModelDifference:
    """A quantity of a model that differs: their value and stagedb's."""

    quantity: str
    theirs: int
    ours: int


@dataclass(frozen=True)
class CheckedModel:
    """One model's outcome. unsupported: why its config makes no card. rules: those that stagedb's rows needed."""

    name: str
    differences: tuple[ModelDifference, ...] = ()
    unsupported: str | None = None
    rules: tuple[str, ...] = ()

    @property
    def agrees(self) -> bool:
        """Whether everything was compared and nothing differs."""
        return self.unsupported is None and not self.differences


def check_models(
    models: Sequence[RecordedModel],
    progress: Callable[[int, int], None] = lambda done, of: None,
    parameters_alone: bool = False,
) -> Iterator[CheckedModel]:
    """Check recorded models one after another. It needs no store. parameters_alone: nothing else is compared.

    progress: called with the models that are done, and all.
    """
    check = check_parameters if parameters_alone else check_model
    for done, model in enumerate(models):
        progress(done, len(models))
        yield check(model)
    progress(len(models), len(models))


def check_model(model: RecordedModel) -> CheckedModel:
    """One recorded model compared with the graph of its config."""
    try:
        card, graph, without = _graph_of(model)
        decode = build_graph(card, decode_options(card)) if model.decode or model.cache else None
    except UsageError as reason:
        return CheckedModel(model.name, unsupported=str(reason))
    env = on_one_rank(graph, model.batch, model.seq)
    ours, kinds = forward_rows(card, graph, env), parameters_by_kind(graph, env)
    rules, differences = matched(model.forward, ours)
    differences += _counted(model, card, kinds)
    if decode is not None:
        rules += tuple(rule for rule in _decoded(model, card, decode, differences) if rule not in rules)
    return CheckedModel(model.name, tuple(differences), rules=without + rules)


def check_parameters(model: RecordedModel) -> CheckedModel:
    """The parameters of one recorded model compared with the graph of its config: in all, and by kind if it has
    them by name."""
    try:
        card, graph, without = _graph_of(model)
    except UsageError as reason:
        return CheckedModel(model.name, unsupported=str(reason))
    differences = _counted(model, card, parameters_by_kind(graph, on_one_rank(graph, model.batch, model.seq)))
    return CheckedModel(model.name, tuple(differences), rules=without)


def _graph_of(model: RecordedModel) -> tuple[Card, SymGraph, tuple[str, ...]]:
    """The card of a record's config as its own code has the model, its graph, and the rules for what that leaves out.

    Raises UsageError for a config that is not read.
    """
    read = from_hugging_face(model.config, name="recorded")
    card = replace(read, vocab_multiple=1, multi_token_prediction=0)
    return card, build_graph(card, GraphOptions()), (WITHOUT_FURTHER,) if read.multi_token_prediction else ()


def _decoded(model: RecordedModel, card: Card, graph: SymGraph, differences: list[ModelDifference]) -> tuple[str, ...]:
    """The rules that the matmuls of a step of decoding need; what differs in them and in the cache is added."""
    rules: tuple[str, ...] = ()
    if model.decode:
        step = on_one_rank(graph, model.batch, 1, model.seq + 1)
        rules, rows = matched(model.decode, forward_rows(card, graph, step))
        differences += [replace(row, quantity=f"decode: {row.quantity}") for row in rows]
    env = on_one_rank(graph, model.batch, 1, model.seq)
    kept, ours = cache_bytes(graph, env), _whole_cache_bytes(graph, env)
    if model.cache == ours != kept:
        return (*rules, WHOLE_CACHE)
    if model.cache not in (None, kept):
        differences.append(ModelDifference("bytes of the cache", model.cache or 0, kept))
    return rules


def decode_options(card: Card) -> GraphOptions:
    """The options of a decode as a model's own code runs it, which makes keys of all latents again."""
    return GraphOptions(workflow=DECODE.name, latents="expanded" if card.word("kv_rank") else "usual")


def cache_bytes(graph: SymGraph, env: Mapping[str, int]) -> int:
    """Bytes of the caches of all layers on one rank.

    graph: of a workflow that has a cache. env: the values of symbols.
    """
    repeats = _repeats(graph, env)
    return sum(evaluate(each.bytes, env) * repeats[each.block] for each in graph.tensors if each.role == "cache")


def _whole_cache_bytes(graph: SymGraph, env: Mapping[str, int]) -> int:
    """Bytes of the caches of all layers on one rank, with the keys that a window or a chunk leaves out too."""
    repeats = _repeats(graph, env)
    caches = (each for each in graph.tensors if each.role == "cache")
    return sum(_whole_bytes(each, env) * repeats[each.block] for each in caches)


def _whole_bytes(cache: SymTensor, env: Mapping[str, int]) -> int:
    """Bytes of a cache with all keys; of a state what it has for every length."""
    return _elements(cache, env) * env[f"e_{cache.dtype}"] if KEYS in cache.axes else evaluate(cache.bytes, env)


def _repeats(graph: SymGraph, env: Mapping[str, int]) -> dict[str, int]:
    return {block.name: evaluate(block.repeat, env) for block in graph.blocks}


def parameters_by_kind(graph: SymGraph, env: Mapping[str, int]) -> dict[str, int]:
    """Elements of all weights of a graph, a tied one once, by the kinds of recorded models.

    env: the values of symbols.
    """
    repeats, found = _repeats(graph, env), Counter[str]()
    for tensor in graph.tensors:
        if tensor.role == "weight" and tensor.parameter is not None and tensor.parameter.tied is None:
            found[_kind(tensor)] += repeats[tensor.block] * _elements(tensor, env)
    return dict(found)


def _elements(tensor: SymTensor, env: Mapping[str, int]) -> int:
    count = 1
    for size in tensor.shape:
        count *= evaluate(size, env)
    return count


_PARTS = (
    ("embedding.word", "embedding"),
    ("stack.layer_word", "embedding"),
    ("embedding.position", "positions"),
    ("head.out", "head"),
    ("streams.", "streams"),
    ("ffn.router", "router"),
    ("ffn.shared", "shared experts"),
    ("ffn.experts", "experts"),
    ("attn.router", "router"),
    ("attn.experts", "experts"),
    ("attn.", "attention"),
    ("ffn.", "feed-forward"),
)
"""Kinds of weights by a part of their names in graphs, after norms."""


def _kind(tensor: SymTensor) -> str:
    own = tensor.name.rsplit(".", 1)[0]
    if own.endswith("norm"):
        return "norm"
    return next((kind for part, kind in _PARTS if part in tensor.name), "others")


def forward_rows(card: Card, graph: SymGraph, env: Mapping[str, int]) -> Rows:
    """The matmuls of a forward on one rank, each with its count. Attention is two matmuls, over the keys that are seen.

    env: the values of symbols.
    """
    repeats, rows = _repeats(graph, env), Rows()
    for op in graph.ops:
        if op.phase == "forward" and isinstance(op.work, Compute) and op.work.dims and op.block in repeats:
            dims = tuple(evaluate(size, env) for size in op.work.dims)
            for row in _written_out(op, op.work, dims, env):
                rows[row] += repeats[op.block]
    return rows


def _written_out(op: SymOp, work: Compute, dims: tuple[int, ...], env: Mapping[str, int]) -> tuple[Row, ...]:
    if op.kind == "attention":
        batch, heads, _, queries, keys, size, *values = dims
        value, pairs = values[0] if values else size, batch * heads
        return ("bmm", (pairs, queries, keys, size)), ("bmm", (pairs, queries, value, keys))
    if op.kind == "attention_index":
        tokens, heads, keys, size = dims
        products: Row = ("bmm", (tokens, heads, keys, size))
        # Without the FLOPs of the sum over heads that is no matmul.
        alone = evaluate(work.flops, env) == 2 * tokens * heads * keys * size
        return (products,) if alone else (products, ("bmm", (tokens, 1, keys, heads)))
    if op.kind == "convolution":
        batch, channels, tokens, taps = dims
        operator = load(op.semantics)
        if isinstance(operator, KeepsState) and operator.keeps:
            tokens += taps - 1 if isinstance(operator, BeforeConvolution) else taps
        return (("conv", (batch, channels, tokens, channels, 1, taps)),)
    if op.kind == "scan":
        return tuple(_scan(op, dims))
    if len(dims) == 3:
        return (("mm", (1, *dims)),)
    batch, _, n, k = dims
    if ".experts." in op.name:
        rows = evaluate(work.flops, env) // (2 * n * k)
        return (("grouped", (batch, rows, n, k)),)
    return (("bmm", dims),)


def _scan(op: SymOp, dims: tuple[int, ...]) -> Iterator[Row]:
    """The matmuls of a scan over chunks, without those that transformers writes as sums of products."""
    operator = load(op.semantics)
    if isinstance(operator, ChunkedScan):
        for count, *matmul in operator.matmuls(tuple(map(number, dims)))[operator.sums :]:
            sizes = tuple(evaluate(str(size), {}) for size in matmul)
            # Chunks that divide a sequence leave no rest.
            yield from [("bmm", sizes)] * (evaluate(str(count), {}) if all(sizes) else 0)


def _masked_keys(ours: Rows, theirs: Rows) -> Rows:
    """Their attention computes scores with keys that a mask leaves out."""
    made = Rows()
    for (op, dims), count in ours.items():
        left = count
        if op == "bmm":
            pairs, m, n, k = dims
            for whole in [(pairs, m, m, k)] * (n < m) + [(pairs, m, n, m)] * (k < m):
                found = min(left, theirs[op, whole])
                made[op, whole] += found
                left -= found
        made[op, dims] += left
    return +made


def _masked_blocks(ours: Rows, theirs: Rows) -> Rows:
    """Their attention has keys of blocks behind all keys of a sequence, where a kernel has those of a window."""
    made = Rows(ours)
    for place in (2, 3):  # of a matmul (pairs, m, n, k): n of the scores and k of the values are numbers of keys
        rows = [row for row in theirs if row[0] == "bmm" and row[1][place] > row[1][1]]
        for row in sorted(rows, key=lambda row: -row[1][place]):
            fitting = [
                each
                for each, count in made.items()
                if each[0] == "bmm" and count == theirs[row] and _without(each[1], place) == _without(row[1], place)
            ]
            fitting = [each for each in fitting if each[1][place] < row[1][place]]
            if fitting:
                made[row] += made.pop(max(fitting, key=lambda each: each[1][place]))
    return made


def _without(dims: tuple[int, ...], place: int) -> tuple[int, ...]:
    return (*dims[:place], *dims[place + 1 :])


def _each_expert(ours: Rows, theirs: Rows) -> Rows:
    """Their code has a matmul for each expert with tokens, with as many rows as it has tokens."""
    made = Rows()
    for (op, dims), count in ours.items():
        found = _of_each(dims, count, theirs) if op == "grouped" else Rows()
        made += found or Rows({(op, dims): count})
    return made


def _of_each(dims: tuple[int, ...], count: int, theirs: Rows) -> Rows:
    """The matmuls of single experts, as wide as ours or with gate and up as one; none if their code has no such ones.

    The graph has as many rows for each expert as one has at most, which may be fewer than one more than the others.
    """
    experts, rows, n, k = dims
    most = rows // experts
    for times in (1, 2):
        found = Rows({("mm", (1, m, n, k)): times * theirs["mm", (1, m, times * n, k)] for m in (most, most - 1)})
        tokens = sum(row[1][1] * each for row, each in found.items())
        if found.total() <= count * experts and count * (rows - experts) < tokens <= count * rows:
            return +found
    return Rows()


def _even_slots(ours: Rows, theirs: Rows) -> Rows:
    """Every expert of the graph has the same number of slots: choices that E does not divide are rounded up."""
    made = Rows()
    for (op, dims), count in ours.items():
        if op == "grouped":
            experts, rows, n, k = dims
            fewer = {d[1] for o, d in theirs if o == "grouped" and (d[0], d[3]) == (experts, k)}
            if len(fewer) == 1 and -(-min(fewer) // experts) * experts == rows:
                dims = (experts, fewer.pop(), n, k)
        made[op, dims] += count
    return made


def _joined(ours: Rows, theirs: Rows) -> Rows:
    """Their code has one matmul where the graph has several of one input: gate and up, or queries, keys and values."""
    made = Rows(ours)
    for (op, dims), count in theirs.items():
        *outer, n, k = dims
        parts = {row: found for row, found in made.items() if row[0] == op and _without_n(row[1]) == (*outer, k)}
        if sum(row[1][-2] * found for row, found in parts.items()) == n * count:
            for row in parts:
                del made[row]
            made[op, dims] += count
    return made


def _two_halves(ours: Rows, theirs: Rows) -> Rows:
    """Our matmuls, with gate and up as two where the recorded code has two of equal size and the graph has one."""
    made = Rows(ours)
    for row in ours:
        made = _halved(made, theirs, row)
    return made


def _halved(ours: Rows, theirs: Rows, row: Row) -> Rows:
    """The rows with those of a width that their code lacks as twice as many of half the width, if that makes all equal.

    Where some feed-forwards are twice as wide as others, halves of these are as wide as both matmuls of the others.
    """
    made = Rows(ours)
    while more := made[row] - theirs[row]:
        op, (*outer, n, k) = row
        half = op, (*outer, n // 2, k)
        if more < 0 or n % 2 or not theirs[half]:
            return ours
        made[half] += 2 * more
        made -= Rows({row: more})
        row = half
    return made


def _without_n(dims: tuple[int, ...]) -> tuple[int, ...]:
    return (*dims[:-2], dims[-1])


def _all_experts(ours: Rows, theirs: Rows) -> Rows:
    """Their code runs every token through every expert."""
    made = Rows()
    for (op, dims), count in ours.items():
        if op == "grouped":
            experts, rows, n, k = dims
            every = {
                d[1] for o, d in theirs if o == "bmm" and d[0] == experts and d[1] >= rows // experts and d[3] == k
            }
            if len(every) == 1:
                op, dims = "bmm", (experts, every.pop(), n, k)
        made[op, dims] += count
    return made


def _multiplied_taps(ours: Rows, theirs: Rows) -> Rows:
    """Their code has no convolution of one token, whose values it multiplies by their taps and adds."""
    if any(op == "conv" for op, _ in theirs):
        return ours
    return Rows({row: count for row, count in ours.items() if not (row[0] == "conv" and row[1][2] == row[1][5])})


WITHOUT_FURTHER = "layers that predict further tokens are left out"
"""The rule for a config that names some: the model's own class has none of them."""

WHOLE_CACHE = "keys that a window leaves out stay in the cache"
"""The rule for a cache of their code that keeps all keys of layers with a window."""

RULES: Mapping[str, Callable[[Rows, Rows], Rows]] = {
    "keys before a window are computed together with those of blocks": _masked_blocks,
    "keys that a mask leaves out are computed": _masked_keys,
    "every token passes every expert": _all_experts,
    "each expert has a matmul of its own": _each_expert,
    "experts have as many slots each": _even_slots,
    "gate and up are two matmuls": _two_halves,
    "projections of one input are one matmul": _joined,
    "a convolution of one token is element-wise": _multiplied_taps,
}
"""How their code writes the same work, by name. A rule changes the rows that differ, and is used if they differ."""


def matched(theirs: Mapping[Row, int], ours: Rows) -> tuple[tuple[str, ...], list[ModelDifference]]:
    """The rules that stagedb's rows need, and the rows that differ after them.

    theirs: how often each row is in the record. ours: in stagedb's graph.
    """
    left_theirs, left_ours = _apart(Rows(theirs), ours)
    used = []
    for name, rule in RULES.items():
        changed = rule(left_ours, left_theirs)
        if changed != left_ours:
            used.append(name)
            left_theirs, left_ours = _apart(left_theirs, changed)
    rows = {**dict.fromkeys(left_theirs), **dict.fromkeys(left_ours)}
    return tuple(used), [
        ModelDifference(f"{op} {list(dims)}", left_theirs[op, dims], left_ours[op, dims]) for op, dims in rows
    ]


def _apart(theirs: Rows, ours: Rows) -> tuple[Rows, Rows]:
    return theirs - ours, ours - theirs


def _counted(model: RecordedModel, card: Card, kinds: Mapping[str, int]) -> list[ModelDifference]:
    found = [("parameters", model.parameters, card.count_parameters())]
    found.append(("weights of the graph", model.parameters, sum(kinds.values())))
    names = dict.fromkeys([*model.kinds, *kinds] if model.kinds else [])
    found += [(f"parameters of {name}", model.kinds.get(name, 0), kinds.get(name, 0)) for name in names]
    return [ModelDifference(*each) for each in found if each[1] != each[2]]
