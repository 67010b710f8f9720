"""Public names of a package that are imported on first use: most commands need few of them."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazily(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of a package whose modules define these names.

    Raises AttributeError for any other name, as Python does.
    """

    def get(name: str) -> Any:
        for module, names in modules.items():
            if name in names:
                return getattr(importlib.import_module(f"{package}.{module}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get


def listed(module: Mapping[str, Any]) -> Callable[[], list[str]]:
    """The `__dir__` of a package with such names: what it has now, and its public names. module: its globals."""
    return lambda: sorted({*module, *module["__all__"]})


class DeferredModule:
    """An object with the attributes of a module, which is imported when one of them is first read."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def deferred(*names: str) -> tuple[Any, ...]:
    """Objects that represent modules. Each imports its module when an attribute of it is first read.

    names: full names of the modules.
    """
    return tuple(map(DeferredModule, names))
