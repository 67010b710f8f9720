"""Memory of every rank class of a stored instance over a step: which tensors it holds, from when to when.

`analyse` reads the instance from the store and computes the memory class by class; `record` writes it to the store,
linked to the instance.
"""

from stagedb.memory.class_memory import ClassMemory, analyse, record
from stagedb.memory.lifetimes import Category
from stagedb.memory.usage import Alive, Point, Usage

__all__ = ["Alive", "Category", "ClassMemory", "Point", "Usage", "analyse", "record"]
