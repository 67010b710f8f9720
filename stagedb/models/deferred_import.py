"""Modules that are imported at their first use.

A card is read without the graph's operators, because importing numpy takes longer than most commands run. The file of a
part of a layer has its sizes and its forward, so operators are imported when a forward is written.
"""

from importlib import import_module
from typing import Any


class DeferredModule:
    """Has the attributes of a module, which is imported when one of them is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)
