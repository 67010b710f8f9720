"""Memory of every rank class of a program over a step: which tensors it holds, from when to when."""

from stagedb.memory.class_memory import ClassMemory, memory_of, peak_of
from stagedb.memory.lifetimes import Category
from stagedb.memory.usage import Alive, Point, Usage

__all__ = ["Alive", "Category", "ClassMemory", "Point", "Usage", "memory_of", "peak_of"]
