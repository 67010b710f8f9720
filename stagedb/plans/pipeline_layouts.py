"""Megatron-Core's texts for the layers of each chunk of a pipeline: `Et|(tt|)*30mL`.

E is the embedding, t a layer, m the layers of multi-token prediction, L the loss, and | the end of a chunk; `*N`
repeats a letter or what is in brackets (`--pipeline-model-parallel-layout`; Megatron-Core parses it in
core/transformer/pipeline_parallel_layer_layout.py).
"""

import re

from stagedb.errors import UsageError
from stagedb.files import shown
from stagedb.mentions import Word

_LETTERS = re.compile(r"[EtmL|()*\d,\s]*", re.ASCII)
_REPEATED = re.compile(r"(?:\(([EtmL|]*)\)|([EtmL|]))\*(\d{1,4})", re.ASCII)

MOST = 1 << 16
"""Letters of a layout. The longest pipelines have some thousand layers."""


def is_layout(text: str) -> bool:
    """Whether a text is written as a layout, and not as numbers."""
    return any(letter in text for letter in "EtmL|")


def parse_layout_text(text: str) -> tuple[int, ...]:
    """The layers of each chunk. UsageError for a text that is no layout, or one that stagedb cannot run."""
    whole = _spelled_out(text)
    if set(whole) - set("EtmL|"):
        raise _refusal(text, "it has brackets that do not match, or a repeat of nothing")
    chunks = whole.split("|")
    if "E" not in chunks[0] or "L" not in chunks[-1] or whole.count("E") != 1 or whole.count("L") != 1:
        raise _refusal(text, "the embedding (E) is in the first chunk, and the loss (L) in the last one, once each")
    if "m" in "".join(chunks[:-1]):
        raise _refusal(text, "layers for further tokens (m) are in the last chunk, with the loss")
    if not re.fullmatch(r"Et*", chunks[0]) and len(chunks) > 1:
        raise _refusal(text, "the first chunk begins with the embedding (E), and layers (t) follow")
    if not re.fullmatch(r"E?t*m*L", chunks[-1]):
        raise _refusal(text, "the last chunk has layers (t), then those for further tokens (m), then the loss (L)")
    return tuple(chunk.count("t") for chunk in chunks)


def _spelled_out(text: str) -> str:
    """The letters with all repeats written out."""
    whole = re.sub(r"[\s,]", "", text)
    if not _LETTERS.fullmatch(whole):
        raise _refusal(text, "it takes E, t, m, L, |, brackets, and * with a number")
    while found := _REPEATED.search(whole):
        inside, times = found[1] if found[1] is not None else found[2], int(found[3])
        if len(whole) + len(inside) * times > MOST:
            raise _refusal(text, f"it has more than {MOST} letters")
        whole = whole[: found.start()] + inside * times + whole[found.end() :]
    return whole


def _refusal(text: str, reason: str) -> UsageError:
    return UsageError(
        f"{shown(text)} is no layout of a pipeline: {reason}. {Word('layers_per_chunk')} takes numbers (1,2,2,0), or "
        "a text such as Et|(tt|)*30mL"
    )
