"""What Python shows: keywords in errors, whole signatures, names of packages, and results as HTML."""

import importlib
import inspect
import subprocess
import sys

import pytest

import stagedb
from stagedb import api
from stagedb.api.python_words import KEYWORDS
from stagedb.errors import StagedbError, UsageError
from stagedb.mentions import OPTIONS, Word, Words, call, one_of, shown_in
from stagedb.plans.aspects import GRAPH_WORDS, PLAN_WORDS
from stagedb.store import Store


@pytest.mark.parametrize(
    ("message", "python"),
    [
        (f"tp is 0: {Word('tp')} takes 1 or more", "tp is 0: tp takes 1 or more"),
        (f"or {Word('global_batch_size', 16)} gives 11%", "or global_batch_size=16 gives 11%"),
        (f"try {Words((Word('tp', 4), Word('pp', 2)))}, or less", "try tp=4, pp=2, or less"),
        (f"leave {Word('sp', True)} out", "leave sp=True out"),
        (
            f"needs {Word('expert_tp', False)} and {Word('loss_parallel', False, 'gather_logits')}",
            "needs expert_tp=False and loss_parallel=False",
        ),
        (f"with {Word('recompute', 'full')}", "with recompute='full'"),
        (f"{Word('only', repr('9'))}: no such rank", "only='9': no such rank"),
        (f"({Word('param', 'KEY=VALUE')}, {Word('instance')})", "(params={KEY: VALUE}, instance)"),
        (f"{Word('layers_per_stage', (4, 0))} has a stage", "layers_per_stage='4,0' has a stage"),
        (f"{call('ls')} lists them", "`db.ls()` lists them"),
        (f"first, with {call('rm', '0123abcd', force=True)}", "first, with `db.rm('0123abcd', force=True)`"),
        (f"with {call('instantiate', 'MODEL')}", "with `db.instantiate(MODEL)`"),
        (f"{call('models')} lists them", "`stagedb.api.models()` lists them"),
        (f"{call('export', packed=True)} writes one", "`db.export(packed=True)` writes one"),
        (f"run {call('store check', repair=True)}", "run `stagedb store check --repair`"),
        (f"take {one_of('recipe', ['torch', 'megatron', 'third'])}", "take recipe='torch', megatron or third"),
        ("a -- b, --tp 4 in a file's name", "a -- b, --tp 4 in a file's name"),
    ],
)
def test_messages_have_keywords(message: str, python: str) -> None:
    assert shown_in(KEYWORDS, message) == python


def test_an_error_has_both_texts(embedded_store: Store) -> None:
    db = api.Stagedb(embedded_store)
    with pytest.raises(UsageError, match=r"tp takes 1 or more") as failed:
        db.instantiate("llama3-8b", tp=0)
    assert failed.value.text(OPTIONS) == "tp is 0: --tp takes 1 or more"
    assert "--" not in str(failed.value)
    with pytest.raises(UsageError, match=r"the nearest for this model is tp=4 or tp=6") as failed:
        db.instantiate("gpt2", tp=5)
    assert "--tp" in failed.value.text(OPTIONS)
    with pytest.raises(UsageError, match=r"`db\.instantiate\(MODEL\)`"):
        db.query("classes")
    with pytest.raises(StagedbError, match=r"`stagedb.api.systems\(\)`"):
        api.system("h1")


def test_signatures_have_every_word() -> None:
    parameters = inspect.signature(api.Stagedb.export).parameters
    assert set(PLAN_WORDS) < set(parameters)
    assert set(inspect.signature(api.Stagedb.build).parameters) == {"self", "model", *GRAPH_WORDS}
    assert not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    assert parameters["tp"].annotation is int
    assert repr(parameters["tp"].default) == "<default>"
    assert "seq_len: int = <default>" in str(inspect.signature(api.Stagedb.profile))
    assert "traces of an instance" in (api.Stagedb.export.__doc__ or "")


@pytest.mark.parametrize("package", ["stagedb", "stagedb.api", "stagedb.plans", "stagedb.traces", "stagedb.files"])
def test_names_that_are_not_loaded_yet_are_listed(package: str) -> None:
    source = f"import {package} as p; print(*dir(p)); [getattr(p, each) for each in p.__all__]"
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert set(importlib.import_module(package).__all__) <= set(ran.stdout.split())


def test_the_package_reaches_its_interface() -> None:
    source = "import stagedb; stagedb.api.models; stagedb.nothing"
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert ran.stderr.strip().endswith("AttributeError: module 'stagedb' has no attribute 'nothing'")
    assert stagedb.api is api


def test_results_are_html(embedded_store: Store) -> None:
    rows = api.Rows(("a<b", "n"), (("<script>", 1234567), (None, 0.5), (["x", "&"], True)))
    html = rows._repr_html_()
    assert "<script>" not in html
    assert "a&lt;b" in html
    assert "&lt;script&gt;" in html
    assert '<td style="text-align:right">1,234,567</td>' in html
    assert "x, &amp;" in html
    assert "and 40 more rows" in api.Rows(("n",), tuple((each,) for each in range(100)))._repr_html_()
    db = api.Stagedb(embedded_store)
    made = db.instantiate("gpt2", tp=2, name="<img src=x>")
    assert "&lt;img src=x&gt;" in made._repr_html_()
    assert "<img" not in made._repr_html_()
    timed = db.profile()
    assert "a step of each lane" in timed._repr_html_()
    assert "profile" in timed.info._repr_html_()
    assert "bytes of a rank of &lt;img" in db.memory()._repr_html_()
    assert db.diff(made.id, made.id)._repr_html_() == "<p>nothing differs</p>"
