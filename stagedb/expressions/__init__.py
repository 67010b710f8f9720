"""Dimensions: sizes, byte counts and FLOPs as exact expressions over named positive integers.

An expression is kept as text in one canonical form (`canonical`), so that a graph can be stored, compared and digested.
It is read back by a parser of its own that can do arithmetic and nothing else: a shared database must not be able to
run code. `evaluate` is exact and does not load sympy; whoever builds a graph may compute with sympy (`symbol`,
`parse`).
"""

from stagedb.expressions.canonical_form import canonical
from stagedb.expressions.evaluation import evaluate, evaluate_all
from stagedb.expressions.parsing import DimensionError, symbols
from stagedb.expressions.sympy_trees import parse, symbol

__all__ = ["DimensionError", "canonical", "evaluate", "evaluate_all", "parse", "symbol", "symbols"]
