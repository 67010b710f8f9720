"""A graph database of execution traces of distributed LLM training.

`connect` opens a store; everything else hangs on what it returns. See `stagedb.api`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagedb.api import Stagedb

__all__ = ["connect"]


def connect(store: str | None = None) -> "Stagedb":
    """Open a store: a bolt:// or neo4j:// address, or a name from the configuration file.

    Without one: `NEO4J_URI` if it is set, else the embedded store of this machine, which is started if it does not
    run. Raises `stagedb.errors.StagedbError` where nothing answers.
    """
    # Not at the top: every module of the package passes here, and most need neither driver nor models.
    from stagedb.api import connect as open_store

    return open_store(store)
