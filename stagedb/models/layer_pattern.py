"""The kind of each layer of a model, from a card: kinds by name, and a pattern of their names."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from stagedb.errors import UsageError
from stagedb.files import did_you_mean, shown
from stagedb.models.kinds import CHANNEL_MIXERS, MIXERS, RESIDUALS, LayerKind, OwnBlock, Value
from stagedb.models.kinds.one_part import MIXER_MAKES_STREAM, MIXER_OF_STREAM
from stagedb.models.kinds.one_part import NONE as NO_PART

NONE = "none"
"""The part that a layer with one part lacks."""

_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")
_TAKEN = ("embedding", "head", "cut", "bucket", "stage", "step")
"""Names of other blocks of a graph."""

_WORDS: Mapping[str, Mapping[str, Any]] = {"mixer": MIXERS, "channel_mixer": CHANNEL_MIXERS, "residual": RESIDUALS}


def read_kinds(
    content: object, usual: Mapping[str, LayerKind], blocks: tuple[OwnBlock, ...] = ()
) -> dict[str, LayerKind]:
    """The kinds of layers that a card names, by name.

    usual: the kinds that need no description. Values that a card leaves out come from the usual kind of that name, or
    from the first one. blocks: the card's own blocks, which are mixers and channel mixers too.

    content: by name a mapping of `mixer`, `channel_mixer`, `residual` and their values; or kinds as they are.
    UsageError for an unknown word, a value that does not suit, and a name that no block may have.
    """
    if isinstance(content, tuple) and all(isinstance(each, LayerKind) for each in content):
        return {each.name: _with_own(each, blocks) for each in content}
    if not isinstance(content, Mapping):
        raise UsageError(
            "layer_kinds takes kinds of layers by name, such as {local: {mixer: sliding_window, window: 4096}}"
        )
    first = next(iter(usual.values()))
    return {str(name): _kind(str(name), each, usual.get(str(name), first), blocks) for name, each in content.items()}


def _with_own(kind: LayerKind, blocks: tuple[OwnBlock, ...]) -> LayerKind:
    """The kind with the own blocks that it names."""
    return replace(kind, own=tuple(block for block in blocks if block.name in (kind.mixer, kind.channel_mixer)))


def _kind(name: str, content: object, usual: LayerKind, blocks: tuple[OwnBlock, ...]) -> LayerKind:
    where = f"layer_kinds: {name}"
    if not _NAME.fullmatch(name) or name in _TAKEN:
        raise UsageError(
            f"{where} is no name of a layer kind: it takes small letters, digits and '_', and not {', '.join(_TAKEN)}"
        )
    if not isinstance(content, Mapping):
        raise UsageError(f"{where} takes a mapping of {', '.join(_WORDS)} and what those take")
    words = {word: content.get(word, getattr(usual, word)) for word in _WORDS}
    own = [block.name for block in blocks]
    for word, built_in in _WORDS.items():
        known = (*built_in, *(own if word != "residual" else ()))
        if words[word] not in known:
            raise UsageError(f"{where}: {word} must be one of {', '.join(known)}, not {shown(words[word])}")
    if words["mixer"] == words["channel_mixer"]:
        raise UsageError(
            f"{where}: {shown(words['mixer'])} is both mixer and channel_mixer: give the block a second name in blocks"
        )
    kind = _with_own(LayerKind(name, **words), blocks)
    for key in content:
        if key not in _WORDS and key not in kind.words:
            raise UsageError(f"{where}: unknown key {shown(key)}{_near(str(key), (*_WORDS, *kind.words))}")
    values: dict[str, Value] = {}
    for key, taken in sorted(kind.words.items()):
        value = content.get(key, taken.default)
        wanted = taken.refused(value)
        if wanted:
            raise UsageError(f"{where}: {key} must be {wanted}, not {shown(value)}")
        value = float(value) if isinstance(taken.default, float) else value
        if value != taken.default:
            values[key] = value
    return replace(kind, values=tuple(values.items()))


def read_pattern(content: object, layers: int) -> tuple[str, ...]:
    """The kind of each layer, in forward order.

    content: of the card's `pattern`: a list that repeats, or a mapping with `every` or `first`. layers: of the model.
    UsageError for other contents.
    """
    if isinstance(content, list | tuple):
        names = [str(name) for name in content]
        if not names or len(names) > layers:
            raise UsageError(f"a pattern of {len(names)} layers, the model has {layers}: name from 1 to {layers}")
        return tuple(names[number % len(names)] for number in range(layers))
    if isinstance(content, Mapping):
        for word in ("every", "first"):
            if set(content) == {word, "kind", "others"}:
                count, kind, others = content[word], str(content["kind"]), str(content["others"])
                if type(count) is not int or not 1 <= count <= layers:
                    raise UsageError(f"pattern: {word} must be a whole number from 1 to {layers}, not {shown(count)}")
                numbers = range(1, layers + 1)
                chosen = (number % count == 0 if word == "every" else number <= count for number in numbers)
                return tuple(kind if each else others for each in chosen)
    raise UsageError(
        "pattern takes a list of layer kinds that repeats, such as [local, global], "
        "{every: N, kind: X, others: Y}, or {first: K, kind: X, others: Y}"
    )


def period(sequence: tuple[str, ...]) -> tuple[str, ...]:
    """The shortest beginning of a sequence whose repetition gives the sequence; the last repeat may be cut off."""
    for length in range(1, len(sequence)):
        if all(name == sequence[number % length] for number, name in enumerate(sequence)):
            return sequence[:length]
    return sequence


def check_known(sequence: Iterable[str], kinds: Mapping[str, LayerKind], named: Iterable[str]) -> None:
    """Raise UsageError if a pattern names an unknown kind, or leaves out one that the card describes.

    sequence: the kind of each layer. kinds: all that are known, by name. named: the kinds that the card describes.
    """
    used = set(sequence)
    for name in used - set(kinds):
        raise UsageError(f"pattern: unknown layer kind {shown(name)}{_near(name, tuple(kinds))}")
    for name in named:
        if name not in used:
            raise UsageError(f"layer_kinds: {name} is the kind of no layer: name it in pattern, or leave it out")


def check_reads(model: str, kind: LayerKind) -> None:
    """Raise UsageError for a part that does not read what the residual gives it. model: its name, for errors."""
    residual, (mixer, channel_mixer) = RESIDUALS[kind.residual], kind.parts
    for word, part in (("mixer", kind.mixer), ("channel_mixer", kind.channel_mixer)):
        if (part == NONE) != (residual.without == word):
            alone = next(name for name, each in RESIDUALS.items() if each.without == word)
            raise UsageError(
                f"{model}: layer_kinds: {kind.name} has {word}: {part} and residual: {kind.residual}, and "
                f"{word}: {NONE} goes with residual: {alone}: set both, or neither"
            )
    if mixer.reads_stream and channel_mixer is not NO_PART:
        raise UsageError(
            f"{model}: layer_kinds: {kind.name} has mixer: {mixer.name}, which is alone in its layers: set "
            f"channel_mixer: {NONE} and residual: "
            f"{MIXER_MAKES_STREAM.name if mixer.makes_stream else MIXER_OF_STREAM.name}"
        )
    word, reader = ("mixer", mixer) if channel_mixer is NO_PART else ("channel_mixer", channel_mixer)
    own = (reader.reads_stream, reader.makes_stream)
    if own != (residual.reads_stream, residual.makes_stream):
        fit = [
            name
            for name, each in RESIDUALS.items()
            if own == (each.reads_stream, each.makes_stream) and (each.without == "channel_mixer") == (word == "mixer")
        ]
        raise UsageError(
            f"{model}: layer_kinds: {kind.name} has {word}: {reader.name}, which goes with residual: "
            f"{' or '.join(fit)}, and not with {kind.residual}"
        )


def _near(word: str, known: tuple[str, ...]) -> str:
    return f"{did_you_mean(word, known)}; it takes {', '.join(known)}"
