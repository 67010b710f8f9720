"""The words of a plan, one file for each aspect. A field declares a word, and everything else comes from the field.

A class with a name `…Options` has words that change the structure of a graph. The others have words that remain
symbols in a graph. A new word is a field here and the code that uses it. `scripts/plan_words` writes the keywords of
the Python API. The command line, plan files, refusals of unknown values, the store's properties and pages follow.
"""

from collections.abc import Mapping
from typing import Any

from stagedb.plans.aspects.adapters import Adapters, TrainedOptions
from stagedb.plans.aspects.batch import Batch
from stagedb.plans.aspects.context import Context, ContextOptions
from stagedb.plans.aspects.degrees import Degrees, World
from stagedb.plans.aspects.experts import ExpertOptions, Experts
from stagedb.plans.aspects.operators import OperatorOptions
from stagedb.plans.aspects.optimizer import OptimizerOptions
from stagedb.plans.aspects.pipeline import Pipeline, PipelineOptions
from stagedb.plans.aspects.precision import Formats, PrecisionOptions
from stagedb.plans.aspects.recompute import Recompute, RecomputeOptions
from stagedb.plans.aspects.sharding import Sharding, ShardingOptions, TensorOptions
from stagedb.plans.aspects.word import PlanWord, aspect, words_of

__all__ = [
    "FORMAT_WORDS",
    "GRAPH_WORDS",
    "LAYOUT_WORDS",
    "PLAN_WORDS",
    "Formats",
    "GraphAspects",
    "LayoutAspects",
    "PlanWord",
    "chosen_words",
    "default_words",
    "plain_words",
]


@aspect
class GraphAspects(
    OperatorOptions,
    TensorOptions,
    ShardingOptions,
    RecomputeOptions,
    ContextOptions,
    ExpertOptions,
    PipelineOptions,
    PrecisionOptions,
    OptimizerOptions,
    TrainedOptions,
):
    """Every word that changes the structure of a graph."""


@aspect
class LayoutAspects(Degrees, Batch, Pipeline, Context, Experts, Sharding, Recompute, Adapters):
    """Every word that lays a graph out over ranks, except the formats."""


def _declared(class_: type) -> Mapping[str, PlanWord]:
    return {word.name: word for word in words_of(class_)}


GRAPH_WORDS = _declared(GraphAspects)
"""The words that change the structure of a graph, by name."""

LAYOUT_WORDS = _declared(LayoutAspects)
"""The words that lay a graph out over ranks, except the formats."""

FORMAT_WORDS = _declared(Formats)
"""The words of number formats; `PlanWord.field` is the class of tensors."""


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _by_aspect(words: Mapping[str, PlanWord]) -> Mapping[str, PlanWord]:
    aspects = list(dict.fromkeys(word.aspect for word in words.values()))
    return dict(sorted(words.items(), key=lambda item: aspects.index(item[1].aspect)))


PLAN_WORDS = _by_aspect({**_declared(World), **LAYOUT_WORDS, **FORMAT_WORDS, **GRAPH_WORDS})
"""Every word of a plan, grouped by aspect."""


def plain_words(words: Mapping[str, PlanWord], values: object) -> dict[str, Any]:
    """The values of words as JSON values."""
    return {name: _plain(getattr(values, word.field)) for name, word in words.items()}


def default_words(words: Mapping[str, PlanWord]) -> dict[str, Any]:
    """The defaults of words as JSON values."""
    return {name: _plain(word.default) for name, word in words.items()}


def chosen_words(words: Mapping[str, PlanWord], plain: Mapping[str, Any]) -> dict[str, Any]:
    """The words that have another value than their default.

    plain: values of words, as `plain_words` has them.
    """
    usual = default_words(words)
    return {name: value for name, value in plain.items() if value != usual[name]}
