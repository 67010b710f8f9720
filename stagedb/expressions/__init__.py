"""Dimensions: sizes, byte counts and FLOPs as exact expressions over named positive integers.

An expression is kept as text in one canonical form (`canonical`), so that a graph can be stored, compared and digested.
It is read back by a parser of its own that can do arithmetic and nothing else: a shared database must not be able to
run code. `evaluate` is exact. Whoever builds a graph computes with `Expression`s (`symbol`, `parse`); `sympy_form`
exchanges them with sympy, which the tests use as the oracle.
"""

from stagedb.expressions.canonical_form import canonical
from stagedb.expressions.evaluation import evaluate, evaluate_all
from stagedb.expressions.expression import (
    Expression,
    ceiling,
    largest,
    number,
    parse,
    product,
    smallest,
    symbol,
    total,
)
from stagedb.expressions.parsing import DimensionError, symbols

__all__ = [
    "DimensionError",
    "Expression",
    "canonical",
    "ceiling",
    "evaluate",
    "evaluate_all",
    "largest",
    "number",
    "parse",
    "product",
    "smallest",
    "symbol",
    "symbols",
    "total",
]
