"""Training frameworks as data: how each builds a step, buckets gradients, stores numbers, and what it refuses.

A plan names one with its word `recipe`. A framework is a file of this package and an entry of `FRAMEWORKS`; the code
asks a framework's fields, never its name.
"""

from collections.abc import Callable, Mapping, Sequence

from stagedb.errors import UsageError
from stagedb.frameworks.bucket_policies import POLICIES, Bucketing, BucketPolicy, bucket_policy
from stagedb.frameworks.framework import DefaultFormats, Framework, FrameworkMemory
from stagedb.frameworks.megatron import MEGATRON
from stagedb.frameworks.torch import TORCH

__all__ = [
    "FRAMEWORKS",
    "POLICIES",
    "BucketPolicy",
    "Bucketing",
    "DefaultFormats",
    "Framework",
    "FrameworkMemory",
    "bucket_policy",
    "either",
    "find_framework",
    "recipes_with",
    "titles_with",
]

FRAMEWORKS: Mapping[str, Framework] = {framework.name: framework for framework in (TORCH, MEGATRON)}
"""Every framework by the name that plans give it."""


def either(words: Sequence[str]) -> str:
    """`a`, `a or b`, `a, b or c`."""
    return " or ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def find_framework(name: str) -> Framework:
    """The framework of this name. Raises UsageError, with the names that there are, for another one."""
    if name not in FRAMEWORKS:
        raise UsageError(f"unknown recipe {name!r}: --recipe is {either(list(FRAMEWORKS))}")
    return FRAMEWORKS[name]


def recipes_with(has: Callable[[Framework], bool]) -> str:
    """The option that chooses a framework which has something, as an error suggests it: `--recipe torch`."""
    return f"--recipe {either([each.name for each in FRAMEWORKS.values() if has(each)])}"


def titles_with(has: Callable[[Framework], bool]) -> str:
    """The frameworks that have something, as an error names them: `PyTorch`."""
    return " and ".join(each.title for each in FRAMEWORKS.values() if has(each))
