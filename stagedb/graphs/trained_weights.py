"""Which weights of a model are trained, and how far down its layers their gradients lead."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.graphs.block import LaidOut
from stagedb.graphs.optimizer_step import Tie
from stagedb.graphs.recomputation import in_layer, meant
from stagedb.ir.operators import Einsum
from stagedb.ir.tensors import Tracer
from stagedb.mentions import Word
from stagedb.models.adapters import ALL, is_adapted, is_adapter, is_under
from stagedb.models.blocks import STACK
from stagedb.models.card import Card
from stagedb.models.kinds import LayerKind
from stagedb.plans.graph_options import GraphOptions

EMBEDDING, HEAD = "embedding", "head"
"""The blocks outside layers, which are frozen as a whole."""

WITHOUT_BELOW = "first_"
"""What the name of a block begins with whose layers have the input's gradient left out."""


@dataclass(frozen=True)
class Trained:
    """The weights that a step trains.

    lora: names of the linear layers with adapters, and only the adapters are trained; empty: there are no adapters.
    frozen: the parts that are not trained: `embedding`, `head`, or names inside a layer. checkpointed: layers are
    functions that have a backward only where their input needs a gradient (Megatron-LM's).
    """

    lora: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    checkpointed: bool = False

    @classmethod
    def of(cls, options: GraphOptions) -> "Trained":
        """The weights that a graph's options train."""
        return cls(options.lora, options.frozen, options.recompute == "full" and options.framework.reentrant)

    @property
    def inputs(self) -> bool:
        """Whether the first layer makes the gradient of its input, though nothing reads it.

        Megatron-Bridge asks for it where layers with adapters are recomputed, so that checkpoints have a backward.
        """
        return self.checkpointed and bool(self.lora)

    @property
    def everything(self) -> bool:
        """Whether all weights are trained."""
        return not self.lora and not self.frozen

    def adapts(self, name: str) -> bool:
        """Whether the linear layer of this name inside a layer has an adapter."""
        return bool(self.lora) and is_adapted(name, self.lora)

    def trains(self, name: str) -> bool:
        """Whether the weight of this name in a graph is trained."""
        if self.lora:
            return is_adapter(name)
        return not is_under(name, self.frozen) and not is_under(in_layer(name), self.frozen)


@dataclass(frozen=True)
class LayerBlock:
    """The layers of a kind that have the same backward, as one block of a graph.

    repeat: how many they are, as an expression. layers: their numbers, from 0; None where those of a kind follow each
    other. below: their input has a gradient. leads: so has their result.
    """

    name: str
    kind: LayerKind
    repeat: str
    layers: tuple[int, ...] | None
    below: bool = True
    leads: bool = True


def layer_blocks(card: Card, trained: Trained, traced: Callable[[LayerKind], Tracer]) -> tuple[LayerBlock, ...]:
    """The blocks of a model's layers: one for each kind, and one more for layers below which nothing is trained. Layers
    that read more than the stream are one block with all others.

    traced: the forward of a layer of a kind. Raises UsageError for names that match nothing.
    """
    if card.stacked:
        _check_stack(card, trained)
        return (LayerBlock(STACK, card.kinds[card.sequence[0]], "1", (0,)),)
    kinds = [card.kinds[name] for name in dict.fromkeys(card.sequence)]
    usual = tuple(LayerBlock(kind.name, kind, _repeat(card, kind), _layers(card, kind)) for kind in kinds)
    if trained.everything:
        return usual
    tracers = {kind.name: traced(kind) for kind in kinds}
    check_frozen(card, trained, tracers.values())
    if trained.inputs or trained.trains(EMBEDDING):
        return usual
    has = {name: any(trained.trains(w.name) for w in tracer.weights) for name, tracer in tracers.items()}
    below = False
    numbers: dict[tuple[str, bool], list[int]] = {}
    for number, name in enumerate(card.sequence):
        numbers.setdefault((name, below), []).append(number)
        below = below or has[name]
    return tuple(
        LayerBlock(
            name if under else WITHOUT_BELOW + name,
            card.kinds[name],
            str(len(of_block)),
            tuple(of_block),
            under,
            under or has[name],
        )
        for (name, under), of_block in numbers.items()
    )


def _check_stack(card: Card, trained: Trained) -> None:
    """Raise UsageError for weights that are not trained where layers read more than the stream."""
    if not trained.everything:
        raise UsageError(
            f"{card.name} has layers with {' and '.join(card.stacked)}, which stagedb trains with all others: leave "
            f"{Word('lora' if trained.lora else 'frozen')} out"
        )


def _repeat(card: Card, kind: LayerKind) -> str:
    """The number of layers of a kind, as a text of symbols: `L` if all layers are of it."""
    if len(set(card.sequence)) == 1:
        return "L"
    if card.pattern:
        return str(card.sequence.count(kind.name))
    return "L - LD" if kind.routes else "LD"


def _layers(card: Card, kind: LayerKind) -> tuple[int, ...] | None:
    """The numbers of a kind's layers, where kinds may alternate."""
    if not card.pattern or len(set(card.sequence)) == 1:
        return None
    return tuple(number for number, name in enumerate(card.sequence) if name == kind.name)


def check_frozen(card: Card, trained: Trained, tracers: Iterable[Tracer]) -> None:
    """Raise UsageError for names of adapters or of frozen parts that match nothing in a model.

    tracers: one for each block of the model, with its weights.
    """
    tracers = tuple(tracers)
    if card.multi_token_prediction:
        word = "lora" if trained.lora else "frozen"
        raise UsageError(
            f"{card.name} predicts further tokens by layers of its last stage, whose weights stagedb trains with all "
            f"others: {Word(word)} needs a card with multi_token_prediction: 0"
        )
    weights = [in_layer(weight.name) for tracer in tracers for weight in tracer.weights]
    if trained.checkpointed and EMBEDDING in trained.frozen:
        raise UsageError(
            "Megatron-LM's checkpoint of a layer has a backward only where its input needs a gradient, so that after "
            f"a frozen embedding the first layer would not be trained: leave {EMBEDDING} out of {Word('frozen')}, or "
            f"take {Word('recompute', 'modules')}"
        )
    if trained.lora:
        matmuls = (op for tracer in tracers for op in tracer.operations if isinstance(op.operator, Einsum))
        names = sorted({in_layer(op.inputs[1].name).removesuffix(".weight") for op in matmuls})
        linear = [name for name in names if f"{name}.weight" in weights and not is_adapter(f"{name}.weight")]
        having = {name.removesuffix(".lora_a.weight") for name in weights if is_adapter(name)}
        _check_named(
            "lora", [t for t in trained.lora if t != ALL and not any(is_under(n, [t]) for n in having)], linear
        )
    else:
        known = [EMBEDDING, HEAD, *dict.fromkeys(name.rpartition(".")[0] for name in weights)]
        parts = (part for part in trained.frozen if part not in (EMBEDDING, HEAD))
        lacking = [part for part in parts if not any(is_under(name, [part]) for name in weights)]
        _check_named("frozen", lacking, known)


def _check_named(word: str, lacking: Sequence[str], known: Sequence[str]) -> None:
    """Raise UsageError for the first name that matches nothing. known: names that do."""
    if not lacking:
        return
    what = "linear layer that can have an adapter" if word == "lora" else "part with weights"
    raise UsageError(
        f"the model has no {what} {shown(lacking[0])}{meant(lacking[0], known)} {Word(word)} takes {', '.join(known)}"
    )


def check_trained(
    card: Card, options: GraphOptions, layers: Iterable[LayerBlock], blocks: Sequence[LaidOut], tie: Tie | None
) -> None:
    """Raise UsageError for parts that cannot be frozen: all, or one end of a tied weight alone; under ZeRO-2 and 3 also
    the first layers.

    blocks: of the model, with the gradients that their backwards make. layers: the blocks that are layers. tie: None
    without tied embeddings.
    """
    if Trained.of(options).everything:
        return
    made = {name for block in blocks for name in block.gradients}
    if not made:
        raise UsageError(
            f"nothing of {card.name} is trained: leave a part out of {Word('frozen')}, or take "
            f"{Word('workflow', 'forward-only')}, which has no backward"
        )
    if tie is not None and len({tie.first, tie.second} & made) == 1:
        raise UsageError(
            f"the embedding and the head of {card.name} are one weight: give both to {Word('frozen')}, or neither"
        )
    if options.zero >= 2 and not all(part.leads for part in layers):
        raise UsageError(
            f"the first layers of {card.name} have no backward, and stagedb does not know when it would gather their "
            f"parameters there and free them: {Word('frozen')} of whole layers needs {Word('zero', 0)} or 1"
        )
