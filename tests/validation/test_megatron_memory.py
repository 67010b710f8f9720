"""The memory of the `megatron` recipe against published forms, as integers: `megatron_forms.py` has the forms."""

import dataclasses
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stagedb.models import Card
from tests.sampling import examples
from tests.validation.megatron_forms import (
    ACTIVATIONS,
    WEIGHTS,
    Term,
    explained,
    layer_form,
    state_form,
    weight_form,
)
from tests.validation.megatron_jobs import GPT, LLAMA, MOE, Job, activations, states

GRID: list[dict[str, Any]] = [
    {"t": t, "sp": sp, "recompute": recompute, "p": p, "v": v, "microbatches": microbatches}
    for (t, sp), recompute, (p, v, microbatches) in product(
        [(1, False), (2, False), (2, True), (4, True)],
        ["none", "core", "full"],
        [(1, 1, 1), (2, 1, 1), (2, 1, 4), (4, 1, 4), (2, 2, 2), (2, 2, 4)],
    )
]


@pytest.mark.parametrize("words", GRID, ids=lambda words: "-".join(map(str, words.values())))
def test_activations_are_those_of_the_paper_and_the_named_terms(words: dict[str, Any]) -> None:
    job = Job(GPT, **words)
    assert activations(job) == explained(job, "paper")


@pytest.mark.parametrize("words", GRID, ids=lambda words: "-".join(map(str, words.values())))
@pytest.mark.parametrize("card", [GPT, LLAMA], ids=["gpt", "llama"])
def test_activations_are_those_of_the_report_and_the_named_terms(card: Card, words: dict[str, Any]) -> None:
    """The report has no form for full recompute."""
    if words["recompute"] != "full":
        job = Job(card, **words, dropout=0.1 if card is GPT else 0.0)
        assert activations(job) == explained(job, "report")
    if words["recompute"] == "none":
        job = Job(card, **words, attention="fused", dropout=0.1 if card is GPT else 0.0)
        assert activations(job) == explained(job, "report")


@pytest.mark.parametrize("words", [each for each in GRID if each["recompute"] == "full"], ids=str)
def test_of_some_layers_each_has_the_form_of_its_kind(words: dict[str, Any]) -> None:
    """`--recompute-method block`: N layers of each chunk are those of full recompute, the others of none."""
    deep = dataclasses.replace(GPT, layers=12)
    full, none = Job(deep, **words), Job(deep, **{**words, "recompute": "none"})
    of_chunk = 12 // (full.p * full.v)
    for first in range(1, of_chunk + 1):
        share = Fraction(first, of_chunk)
        expected = share * explained(full, "paper") + (1 - share) * explained(none, "paper")
        assert activations(Job(deep, **words, first=first)) == expected


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Sizes and plans of every kind that both sources have."""
    t = draw(st.sampled_from([1, 2, 3]))
    p, v = draw(st.sampled_from([(1, 1), (2, 1), (3, 1), (2, 2), (3, 2), (2, 3)]))
    kv_heads = t * draw(st.integers(1, 2))
    heads, head_dim = kv_heads * draw(st.integers(1, 3)), 2 * draw(st.integers(1, 5))
    card = dataclasses.replace(
        draw(st.sampled_from([GPT, LLAMA])),
        hidden=t * draw(st.integers(2, 20)) * 2,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=t * draw(st.integers(1, 40)),
        vocab=draw(st.integers(5, 700)),
        layers=p * v * draw(st.integers(1, 2)),
        tied=draw(st.booleans()),
    )
    attention = draw(st.sampled_from(["math", "fused"]))
    dp = draw(st.integers(1, 3))
    return Job(
        card,
        s=t * draw(st.integers(1, 6)),
        b=draw(st.integers(1, 3)),
        t=t,
        sp=t > 1 and draw(st.booleans()),
        p=p,
        v=v,
        microbatches=p * draw(st.integers(1, 3)) if v > 1 else draw(st.integers(1, 6)),
        attention=attention,
        recompute=draw(st.sampled_from(["none", "core"])) if attention == "math" else "none",
        dropout=draw(st.sampled_from([0.0, 0.1])),
        dp=dp,
        zero=draw(st.sampled_from([0, 1])) if dp > 1 else 0,
    )


@settings(max_examples=examples(20), deadline=None)
@given(job=jobs())
def test_every_job_is_explained(job: Job) -> None:
    assert activations(job) == explained(job, "report")
    assert states(job) == state_form(job)


STATES = [
    *product(
        [GPT, dataclasses.replace(GPT, tied=False), LLAMA, dataclasses.replace(LLAMA, tied=True, qkv_bias=True)],
        [{}, {"t": 2}, {"p": 2}, {"t": 2, "p": 4}, {"dp": 2, "zero": 1}, {"dp": 3, "t": 2, "p": 2, "zero": 1}],
    ),
    *product([MOE, dataclasses.replace(MOE, shared_ffn=24)], [{}, {"t": 2}, {"p": 2}, {"dp": 2, "ep": 2, "t": 2}]),
]


@pytest.mark.parametrize(("card", "words"), STATES)
def test_states_are_those_of_the_report_and_the_named_terms(card: Card, words: dict[str, Any]) -> None:
    job = Job(card, **words)
    assert states(job) == state_form(job)


def test_forms_hold_without_differences() -> None:
    """The states of a model without biases and positions, on one rank; and a layer, whose norms keep statistics."""
    assert states(Job(LLAMA)) == weight_form(Job(LLAMA))
    for sp in (False, True):
        job = Job(GPT, t=2, sp=sp)
        kept = sum(job.memory.saved()[1].values())
        assert kept - 2 * 8 * job.sb // job.between == layer_form(job, "paper")


@pytest.mark.parametrize("term", ACTIVATIONS, ids=lambda term: term.name)
def test_every_difference_is_one_of_a_job_of_the_grid(term: Term) -> None:
    jobs = [Job(card, **words) for words in GRID for card in (GPT, LLAMA)]
    jobs += [Job(GPT, attention="fused"), Job(GPT, dropout=0.0)]
    assert any(term.bytes(job, source) for job in jobs for source in ("paper", "report"))


def test_the_documentation_has_every_difference() -> None:
    text = (Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")}
    assert {*(term.name for term in ACTIVATIONS), *WEIGHTS} <= rows
