"""Training frameworks as data: how each builds a step, buckets gradients and stores numbers, and what it refuses.

The word `recipe` of a plan names one. A framework is a file of this package and an entry of `FRAMEWORKS`. Code reads
the fields of a framework and never compares its name.
"""

from collections.abc import Callable, Mapping, Sequence

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.frameworks.bucket_policies import POLICIES, Bucketing, BucketPolicy, bucket_policy
from stagedb.frameworks.framework import DefaultFormats, Framework, FrameworkMemory
from stagedb.frameworks.megatron import MEGATRON
from stagedb.frameworks.torch import TORCH
from stagedb.mentions import Word, one_of

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
    """The framework with this name. Raises UsageError, with the known names, for another one."""
    if name not in FRAMEWORKS:
        raise UsageError(f"unknown recipe {shown(name)}: {Word('recipe')} is {either(list(FRAMEWORKS))}")
    return FRAMEWORKS[name]


def recipes_with(has: Callable[[Framework], bool]) -> str:
    """The option that chooses a framework with some feature, as an error suggests it: `recipe` is `torch`.

    has: whether a framework has the feature.
    """
    return one_of("recipe", [each.name for each in FRAMEWORKS.values() if has(each)])


def titles_with(has: Callable[[Framework], bool]) -> str:
    """The frameworks with some feature, as an error names them: `PyTorch`. has: whether a framework has the feature."""
    return " and ".join(each.title for each in FRAMEWORKS.values() if has(each))
