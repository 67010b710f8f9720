"""Draws configs of every class that is read, and compares stagedb's parameters with those of the models' own code.

`scripts/record_models --draw -o tests/models/drawn_configs.json` writes the drawn configs for tests without torch, and
prints how many agree, are refused, and differ. `--only` takes some architectures, by the beginning of their names.
`scripts/record_models --classes -o stagedb/models/readers/classes.json` writes the table of classes.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import transformers

from scripts.recording import drawn_configs
from scripts.recording.under_torch import model_classes, model_draw
from stagedb.errors import UsageError
from stagedb.models import from_hugging_face
from stagedb.models.readers import READERS
from stagedb.models.readers.nested_decoders import TEXT_MODELS, WHOLE_MODELS

OTHER_TEXTS = (
    ("InternVLForConditionalGeneration", "qwen3_moe"),
    ("InternVLForConditionalGeneration", "phi"),
    ("LlavaForConditionalGeneration", "cohere2"),
)
"""Whole models with another text model than their class's own, which the head of the whole model reads."""


def classes() -> str:
    """The table of classes."""
    transformers.logging.set_verbosity_error()
    return model_classes.written(model_classes.table([*READERS, *WHOLE_MODELS], TEXT_MODELS))


def draw(only: str) -> str:
    """The file of drawn configs. Prints on standard error how each class compares."""
    transformers.logging.set_verbosity_error()
    found: dict[str, Any] = {}
    total: Counter[str] = Counter()
    for architecture, text in _asked(only):
        made = drawn_configs.packed(model_draw.rows(architecture, text))
        if made is None:
            print(f"{architecture} {text}: no model of its class", file=sys.stderr)
            continue
        made["usual"] = model_draw.usual(architecture, text)
        found[f"{architecture} {text}".strip()] = made
        counts = Counter(compared(*each) for each in drawn_configs.unpacked(made))
        total += counts
        print(f"{architecture} {text}: {_words(counts)}", file=sys.stderr, flush=True)
    print(f"{total.total()} drawn: {_words(total)}", file=sys.stderr)
    return drawn_configs.written(transformers.__version__, found)


def _asked(only: str) -> Iterator[tuple[str, str]]:
    for architecture, text in (*((each, "") for each in (*READERS, *WHOLE_MODELS)), *OTHER_TEXTS):
        if hasattr(transformers, architecture) and architecture.startswith(only):
            yield architecture, text


def _words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))


def compared(config: dict[str, Any], parameters: int, _: str) -> str:
    """Whether the parameters that stagedb counts are those of the model's own code, which predicts one token."""
    try:
        card = from_hugging_face(config, name="drawn")
    except UsageError:
        return "refused"
    return "agree" if replace(card, multi_token_prediction=0).count_parameters() == parameters else "differ"


def write(text: str, output: Path | None) -> None:
    """Write a text to a file, or to standard output."""
    if output is None:
        print(text, end="")
    else:
        output.write_text(text, encoding="utf-8")
