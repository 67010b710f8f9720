"""A refusal names plans that are accepted, with all other words of the request and for its model."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from stagedb.errors import UsageError
from stagedb.plans import Plan, plan_for
from stagedb.plans.written_words import RANK_ORDER
from stagedb.schedules import SCHEDULES

DENSE = {"L": 32, "H": 4096, "A": 32, "KV": 8, "D": 128, "F": 14336, "V": 128256}
SPARSE = {"L": 32, "H": 4096, "A": 32, "KV": 8, "D": 128, "F": 14336, "V": 32000, "E": 8, "K": 2, "FE": 14336}
FINE = {**SPARSE, "L": 27, "A": 16, "KV": 16, "E": 60, "K": 6, "FE": 1408, "FS": 2816, "LD": 1, "F": 10944}

Words = Mapping[str, object]


def named(text: str) -> list[tuple[dict[str, object], set[str]]]:
    """What a refusal names: for each plan the words that it changes and those that it leaves out."""
    found = re.search(r": (?:the nearest [a-z ]*is |(?=take |leave ))(.*?)(?:; other numbers .*)?$", text)
    ways = re.split(r",? or (?=--|take |leave )", found[1]) if found else []
    changes = []
    for way in ways:
        if way.startswith("leave "):
            kept, dropped = "", way
        else:
            kept, _, dropped = way.removeprefix("take ").partition(" without ")
        options = {}
        for word, value in re.findall(r"--([a-z-]+)(?: ([^- ][^ ]*))?", kept):
            options[_word(word)] = _value(value) if value else not word.startswith("no-")
        changes.append((options, {_word(word) for word in re.findall(r"--([a-z-]+)", dropped)}))
    return changes


def _word(text: str) -> str:
    return text.removeprefix("no-").replace("-", "_")


def _value(text: str) -> object:
    return int(text) if text.isdecimal() else text


def refusal(words: Words, sizes: Mapping[str, int]) -> str | None:
    """What the words are refused with; None where they are accepted."""
    try:
        plan_for(words, sizes)
    except UsageError as error:
        return str(error)
    return None


def assert_named_plans_are_accepted(words: Words, sizes: Mapping[str, int], text: str) -> int:
    changes = named(text)
    for options, dropped in changes:
        assert options or dropped & words.keys(), (words, text)
        changed = {word: value for word, value in {**words, **options}.items() if word not in dropped}
        assert refusal(changed, sizes) is None, (words, text, changed)
    return len(changes)


SMALL = st.integers(1, 16)
KINDS = ["allgather-kv", "ring-allgather", "ring-alltoall", "ring-p2p", "ulysses", "ulysses-ring"]
WORDS: Mapping[str, st.SearchStrategy[Any]] = {
    "ranks": st.integers(0, 96),
    "dp": SMALL,
    "tp": SMALL,
    "pp": st.integers(1, 6),
    "cp": SMALL,
    "ep": SMALL,
    "hsdp": st.integers(1, 8),
    "ulysses": st.integers(1, 8),
    "zero": st.sampled_from([0, 1, 3]),
    "sp": st.booleans(),
    "expert_tp": st.booleans(),
    "ep_sync": st.booleans(),
    "cp_grad_sync": st.booleans(),
    "recipe": st.sampled_from(["torch", "megatron"]),
    "cp_kind": st.sampled_from(KINDS),
    "micro_batch_size": st.integers(1, 4),
    "global_batch_size": st.integers(1, 64),
    "seq_len": st.one_of(st.integers(1, 3000), st.sampled_from([1024, 3840, 4096, 7680])),
    "schedule": st.sampled_from([*SCHEDULES]),
    "virtual_stages": st.integers(1, 5),
    "capacity_factor": st.sampled_from([1.0, 1.5]),
    "expert_load": st.sampled_from([[2, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1]]),
    "dispatch": st.sampled_from(["copies", "ranks", "nodes"]),
    "dispatch_dtype": st.sampled_from(["same", "fp8"]),
    "node_ranks": st.integers(1, 9),
    "routing": st.sampled_from([[[0, 1]], [[0, 7], [3, 2], [1, 5]], [[0, 1, 2, 3, 4, 5]]]),
    "rank_order": st.permutations(RANK_ORDER),
}


@settings(max_examples=400, deadline=None)
@given(
    words=st.sets(st.sampled_from(sorted(WORDS)), min_size=1, max_size=6).flatmap(
        lambda chosen: st.fixed_dictionaries({word: WORDS[word] for word in sorted(chosen)})
    ),
    sizes=st.sampled_from([DENSE, SPARSE, FINE]),
)
def test_every_plan_that_a_refusal_names_is_accepted(words: Words, sizes: Mapping[str, int]) -> None:
    text = refusal(words, sizes)
    if text is not None:
        event(f"named: {assert_named_plans_are_accepted(words, sizes, text)}")


@pytest.mark.parametrize(
    ("sizes", "words", "expected"),
    [
        (SPARSE, {"ranks": 12, "ep": 5, "seq_len": 4096}, "dp x cp = 12, .*: the nearest is --ep 4$"),
        (SPARSE, {"ranks": 3, "ep": 2, "seq_len": 4096}, "the nearest is --ep 1$"),
        (
            SPARSE,
            {"ranks": 4, "cp": 4, "micro_batch_size": 4, "seq_len": 1001},
            "take --seq-len 1000 or --seq-len 1008, or --capacity-factor 1|take --seq-len 1000 or --seq-len 1008$",
        ),
        (
            DENSE,
            {"ranks": 3, "pp": 3, "virtual_stages": 2, "schedule": "interleaved", "global_batch_size": 3},
            "the nearest is --virtual-stages 1 --schedule 1f1b",
        ),
        (
            DENSE,
            {"ranks": 3, "pp": 3, "virtual_stages": 2, "global_batch_size": 3},
            "is --virtual-stages 1, or --layers-per-chunk",
        ),
        (
            DENSE,
            {"ranks": 512, "cp": 512, "cp_kind": "ring-p2p", "seq_len": 1024},
            "the nearest is --cp 64, or --cp-kind allgather-kv$",
        ),
        (DENSE, {"ranks": 14, "cp": 7, "cp_kind": "ulysses", "seq_len": 1022}, "the nearest is --cp 2, or --cp-kind"),
        (DENSE, {"ranks": 8, "tp": 2, "hsdp": 4, "zero": 0}, "shards nothing: leave --hsdp out$"),
        (
            SPARSE,
            {"ranks": 8, "tp": 2, "ep": 4, "expert_tp": False, "seq_len": 4096},
            "the same tokens, as no step of training does: take --sp, or leave --no-expert-tp out",
        ),
    ],
)
def test_what_is_named_suits_the_whole_plan(sizes: Mapping[str, int], words: Words, expected: str) -> None:
    text = refusal(words, sizes)
    assert text is not None
    assert re.search(expected, text), text
    assert assert_named_plans_are_accepted(words, sizes, text) > 0


def test_if_several_words_are_wrong_the_next_one_is_named() -> None:
    text = refusal({"ranks": 12, "ep": 5, "cp": 4, "seq_len": 1001}, SPARSE)
    assert text is not None
    assert not named(text)
    assert re.search(
        "a change of that alone is not enough, because with ep [46] .*1001 tokens is not divisible", text
    ), text


def test_a_plan_without_a_model_names_what_suits_by_itself() -> None:
    with pytest.raises(UsageError, match=r"the nearest is --ep 4 or --ep 6$"):
        Plan(dp=12, ep=5)
