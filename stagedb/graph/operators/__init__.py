"""Operators: small frozen classes that tell shape, FLOPs, gradient rule and numpy meaning; one module a family.

`OPERATORS` maps a class's name to the class: it is how an operator comes back from the store (`dump`, `load`).
"""

import dataclasses
import json

from stagedb.graph.operators._base import Array, Operator, Place
from stagedb.graph.operators.attention import (
    AdditiveMask,
    Attention,
    AttentionGradient,
    FoldHeads,
    PackHeads,
    RepeatHeads,
    Rotary,
    Softmax,
    SoftmaxGradient,
    SplitHeads,
)
from stagedb.graph.operators.contraction import Einsum, ReduceSum
from stagedb.graph.operators.elementwise import (
    Activation,
    ActivationGradient,
    Add,
    Cast,
    Dropout,
    DropoutGradient,
    Gate,
    GateGradient,
    MeanSquare,
    MeanSquareGradient,
    Multiply,
    Rsqrt,
    RsqrtGradient,
    SumProduct,
)
from stagedb.graph.operators.embedding import (
    Embedding,
    EmbeddingGradient,
    PositionEmbedding,
    PositionEmbeddingGradient,
)
from stagedb.graph.operators.experts import (
    ChoiceSoftmax,
    ChoiceSoftmaxGradient,
    Combine,
    CombineGradient,
    Dispatch,
    DispatchGradient,
    Route,
    TopK,
    TopKGradient,
    WeightedSum,
    WeightedSumGradient,
)
from stagedb.graph.operators.loss import (
    CrossEntropy,
    CrossEntropyGradient,
    LogSoftmax,
    MaxOverVocabulary,
    PickLabel,
    Shift,
    SumExp,
    TokenMean,
    TokenMeanGradient,
)
from stagedb.graph.operators.norm import LayerNorm, LayerNormGradient, RMSNorm, RMSNormGradient
from stagedb.graph.operators.optimizer import AdamW
from stagedb.graph.operators.quantize import E4M3, Quantize
from stagedb.graph.operators.redistribution import Redistribution, Rotate
from stagedb.graph.operators.ring import (
    Contiguous,
    PackKeys,
    RingAttention,
    RingAttentionGradient,
    RingStep,
    RingStepGradient,
    UnpackGradients,
)

OPERATORS: dict[str, type[Operator]] = {
    cls.__name__: cls
    for cls in (
        Activation,
        ActivationGradient,
        AdamW,
        Add,
        AdditiveMask,
        Attention,
        AttentionGradient,
        Cast,
        ChoiceSoftmax,
        ChoiceSoftmaxGradient,
        Combine,
        CombineGradient,
        Contiguous,
        CrossEntropy,
        CrossEntropyGradient,
        Dispatch,
        DispatchGradient,
        Dropout,
        DropoutGradient,
        Einsum,
        Embedding,
        EmbeddingGradient,
        FoldHeads,
        Gate,
        GateGradient,
        LayerNorm,
        LayerNormGradient,
        LogSoftmax,
        MaxOverVocabulary,
        MeanSquare,
        MeanSquareGradient,
        Multiply,
        PackHeads,
        PackKeys,
        PickLabel,
        PositionEmbedding,
        PositionEmbeddingGradient,
        Quantize,
        RMSNorm,
        RMSNormGradient,
        Redistribution,
        ReduceSum,
        RepeatHeads,
        RingAttention,
        RingAttentionGradient,
        RingStep,
        RingStepGradient,
        Rotary,
        Rotate,
        Route,
        Rsqrt,
        RsqrtGradient,
        Shift,
        Softmax,
        SoftmaxGradient,
        SplitHeads,
        SumExp,
        SumProduct,
        TokenMean,
        TokenMeanGradient,
        TopK,
        TopKGradient,
        WeightedSum,
        WeightedSumGradient,
        UnpackGradients,
    )
}


def dump(operator: Operator) -> str:
    """The stored form: JSON of the class's name and its fields."""
    return json.dumps({"operator": type(operator).__name__, **dataclasses.asdict(operator)}, sort_keys=True)


def load(text: str) -> Operator:
    """The operator of a stored form; ValueError where it names none."""
    fields = json.loads(text)
    cls = OPERATORS.get(fields.pop("operator", ""))
    if cls is None:
        raise ValueError(f"not an operator: {text}")
    return cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


__all__ = [
    "E4M3",
    "OPERATORS",
    "Activation",
    "ActivationGradient",
    "AdamW",
    "Add",
    "AdditiveMask",
    "Array",
    "Attention",
    "AttentionGradient",
    "Cast",
    "ChoiceSoftmax",
    "ChoiceSoftmaxGradient",
    "Combine",
    "CombineGradient",
    "Contiguous",
    "CrossEntropy",
    "CrossEntropyGradient",
    "Dispatch",
    "DispatchGradient",
    "Dropout",
    "DropoutGradient",
    "Einsum",
    "Embedding",
    "EmbeddingGradient",
    "FoldHeads",
    "Gate",
    "GateGradient",
    "LayerNorm",
    "LayerNormGradient",
    "LogSoftmax",
    "MaxOverVocabulary",
    "MeanSquare",
    "MeanSquareGradient",
    "Multiply",
    "Operator",
    "PackHeads",
    "PackKeys",
    "PickLabel",
    "Place",
    "PositionEmbedding",
    "PositionEmbeddingGradient",
    "Quantize",
    "RMSNorm",
    "RMSNormGradient",
    "Redistribution",
    "ReduceSum",
    "RepeatHeads",
    "RingAttention",
    "RingAttentionGradient",
    "RingStep",
    "RingStepGradient",
    "Rotary",
    "Rotate",
    "Route",
    "Rsqrt",
    "RsqrtGradient",
    "Shift",
    "Softmax",
    "SoftmaxGradient",
    "SplitHeads",
    "SumExp",
    "SumProduct",
    "TokenMean",
    "TokenMeanGradient",
    "TopK",
    "TopKGradient",
    "UnpackGradients",
    "WeightedSum",
    "WeightedSumGradient",
    "dump",
    "load",
]
