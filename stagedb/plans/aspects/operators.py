"""The framework that a graph follows, and the operators that its layers have."""

from typing import Annotated, Literal

from stagedb.frameworks import FRAMEWORKS, either
from stagedb.plans.aspects.word import About, aspect


@aspect
class OperatorOptions:
    """The framework and the kernels."""

    recipe: Annotated[
        str,
        About(
            "The framework that the graph follows.",
            property=f"the framework that the graph follows: {either(list(FRAMEWORKS))}",
            metavar="|".join(FRAMEWORKS),
        ),
    ] = "torch"
    """A name of `stagedb.frameworks.FRAMEWORKS`."""
    attention: Annotated[
        Literal["fused", "math"],
        About("One flash-like kernel, or matmuls and a softmax.", property="fused or math"),
    ] = "fused"
    """The backward of the fused kernel recomputes the scores."""
    dropout: Annotated[float, About("Dropout probability.", property="probability of dropout", metavar="P")] = 0.0
    """Above 0 the graph has dropout operators."""
    kernels: Annotated[
        Literal["fused", "eager"],
        About(
            "Fused element-wise kernels, or one kernel a primitive, as autograd runs them.",
            property="fused or eager element-wise kernels",
        ),
    ] = "fused"
