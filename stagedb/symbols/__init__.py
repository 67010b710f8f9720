"""Dimensions: sizes, byte counts and FLOPs as exact expressions over named positive integers.

An expression is kept as text in one canonical form (`canonical`), so that a graph can be stored, compared and digested.
It is read back by a parser of its own that can do arithmetic and nothing else: a shared database must not be able to
run code. `evaluate` is exact and does not load sympy; whoever builds a graph may compute with sympy (`symbol`,
`parse`).
"""

from stagedb.symbols.evaluation import evaluate, evaluate_all
from stagedb.symbols.form import canonical
from stagedb.symbols.syntax import DimensionError, symbols
from stagedb.symbols.tree import parse, symbol

__all__ = ["DimensionError", "canonical", "evaluate", "evaluate_all", "parse", "symbol", "symbols"]
