"""An instance on accelerators: what every rank class holds in memory over a step."""

from stagedb.profile.lifetimes import Category
from stagedb.profile.memory import ClassMemory, analyse, record
from stagedb.profile.usage import Alive, Point, Usage

__all__ = ["Alive", "Category", "ClassMemory", "Point", "Usage", "analyse", "record"]
