"""Modules that are imported when they are first used.

A card is read without the graph's operators: numpy takes longer to import than most commands run. A part of a layer has
its sizes and its forward in one file, so that operators are imported when a forward is written.
"""

from importlib import import_module
from typing import Any


class DeferredModule:
    """Has the attributes of a module, which is imported at the first read of one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
