"""The number of ranks for each kind of parallelism, and their order."""

from typing import Annotated

from stagedb.mentions import Word
from stagedb.plans.aspects.word import WordSpec, aspect

RANK_ORDER = ("tp", "cp", "dp", "pp")
"""Mesh axes, innermost first: neighbouring ranks differ in the first one."""


@aspect
class World:
    """A word that sets another one and is not stored: dp follows from it."""

    ranks: Annotated[
        int | None,
        WordSpec(f"World size; sets dp = N / (tp x pp x cp) if {Word('dp')} is not given.", property="", unset=""),
    ] = None


@aspect
class Degrees:
    """The degrees of parallelism; the world has `dp * tp * pp * cp` ranks."""

    tp: Annotated[
        int, WordSpec("Tensor parallelism.", property="degree of tensor parallelism", least=1, symbol="tp")
    ] = 1
    pp: Annotated[int, WordSpec("Pipeline stages.", property="pipeline stages", least=1, symbol="pp")] = 1
    cp: Annotated[
        int,
        WordSpec(
            "Context parallelism: ranks that share a sequence.",
            property="degree of context parallelism",
            least=1,
            symbol="cp",
        ),
    ] = 1
    ep: Annotated[
        int,
        WordSpec(
            f"Expert parallelism, among the ranks of dp x cp (with {Word('expert_tp', False)} also of tp): N divides "
            "them and the experts.",
            property="degree of expert parallelism",
            least=1,
            symbol="ep",
        ),
    ] = 1
    dp: Annotated[
        int,
        WordSpec(
            "Data parallelism.",
            property="degree of data parallelism",
            unset=f"from {Word('ranks')}, else 1",
            least=1,
            symbol="dp",
        ),
    ] = 1
    rank_order: Annotated[
        tuple[str, ...],
        WordSpec("Mesh axes, innermost first.", property="mesh axes, innermost first", metavar="AXIS,…"),
    ] = RANK_ORDER
