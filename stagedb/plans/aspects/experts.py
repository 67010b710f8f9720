"""How ranks share experts, and how tokens reach them."""

from typing import Annotated

from stagedb.plans.aspects.word import About, aspect


@aspect
class Experts:
    """How many tokens go to each expert."""

    capacity_factor: Annotated[
        float | None,
        About(
            "Slots of an expert, as a multiple of its even share.",
            property="slots of an expert over its even share of tokens; absent: dropless",
            unset="dropless",
        ),
    ] = None
    expert_load: Annotated[
        tuple[int, ...],
        About(
            "How many choices of tokens go to each expert: a YAML or JSON list, or numbers as 3,1,2,2.",
            property="choices in a row that go to each expert; empty: the same for all",
            unset="even",
            metavar="FILE",
            file=True,
        ),
    ] = ()


@aspect
class ExpertOptions:
    """How experts are divided among ranks, and their gradients reduced."""

    expert_tp: Annotated[
        bool,
        About(
            "Tensor parallelism partitions each expert too, or its ranks (with --sp) have whole ones, among those of "
            "--ep.",
            property="tensor parallelism partitions each expert",
        ),
    ] = True
    """False: experts are whole, and under sp the ranks of tp are among those that share them (`experts_over_tp`)."""
    ep_sync: Annotated[
        bool,
        About(
            "Reduce over ep the gradients of all but experts; without, copies drift apart.",
            property="gradients of what all ranks of ep hold alike are reduced over ep",
            needs="gradients",
        ),
    ] = True
    """False leaves a reduction out that training needs: a measurement of expert parallelism alone does so."""
