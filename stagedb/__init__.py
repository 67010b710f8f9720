"""A graph database of execution traces of distributed LLM training.

`connect` opens a store, and most else hangs on what it returns. `unpack` and `validate` work on files and need none.
See `stagedb.api`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagedb.api import Stagedb, unpack, validate

__all__ = ["connect", "unpack", "validate"]


def __getattr__(name: str) -> Any:
    """Load on first use what `stagedb.api` has of these names."""
    if name in __all__:
        import stagedb.api

        return getattr(stagedb.api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def connect(store: str | None = None) -> "Stagedb":
    """Open a store: a bolt:// or neo4j:// address, or a name from the configuration file.

    Without one: `NEO4J_URI` if it is set, else the embedded store of this machine, which is started if it does not
    run. Raises `stagedb.errors.StagedbError` where nothing answers.
    """
    # Not at the top: every module of the package passes here, and most need neither driver nor models.
    from stagedb.api import connect as open_store

    return open_store(store)
