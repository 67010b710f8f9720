"""What every rank class of a stored instance holds in memory over a step: which tensors, from when to when.

`analyse` reads the instance from the store and computes it class by class, `record` writes it beside the instance.
"""

from stagedb.memory.class_memory import ClassMemory, analyse, record
from stagedb.memory.lifetimes import Category
from stagedb.memory.usage import Alive, Point, Usage

__all__ = ["Alive", "Category", "ClassMemory", "Point", "Usage", "analyse", "record"]
