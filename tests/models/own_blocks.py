"""Own blocks for tests: the files of `blocks`, and tiny models that have them."""

import dataclasses
from pathlib import Path
from typing import Any

import yaml

from stagedb.models import Card
from tests.ir.tiny import card

FOLDER = Path(__file__).parent / "blocks"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.yaml")))
MIXES = ("heads",)
"""Blocks that read several tokens of a sequence."""


def content(name: str) -> dict[str, Any]:
    """The content of a file."""
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    return found


def with_block(name: str, layers: int = 2, **fields: Any) -> Card:
    """A tiny model all of whose layers have the block."""
    slot = "mixer" if name in MIXES else "channel_mixer"
    usual = card("llama", kv_heads=4)
    words: Any = {"blocks": {"mine": content(name)}, "layer_kinds": {"layer": {slot: "mine"}}}
    return dataclasses.replace(usual, layers=layers, **{**words, **fields})
