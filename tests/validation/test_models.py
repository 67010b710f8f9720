"""Models as their own code has them (`models.json`: transformers 5.23, shapes only) against graphs of their configs."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stagedb.cli.application import application
from stagedb.errors import UsageError
from stagedb.models import from_hugging_face
from stagedb.models.readers import UNUSED_WHERE, WITHOUT_EFFECT
from stagedb.models.readers.nested_decoders import OTHER_PARTS
from stagedb.validation import check_model, read_models
from stagedb.validation.model_check import Row, check_parameters, matched
from tests.sampling import EVERY

APP = application()

FILE = Path(__file__).with_name("models.json")
STEPS = Path(__file__).with_name("decode_steps.json")
MODELS = {model.name: model for model in read_models(FILE)}


@pytest.mark.parametrize("name", MODELS)
def test_parameters_and_matmuls_are_those_of_the_models_own_code(name: str) -> None:
    checked = check_model(MODELS[name])
    assert checked.unsupported is None
    assert not checked.differences


def test_the_command_ends_with_how_many_agree(tmp_path: Path) -> None:
    found = CliRunner().invoke(APP, ["validate", "--models", str(FILE), "--only", "*-7b*"])
    assert found.exit_code == 0, found.output
    assert found.stderr.splitlines()[-1] == "10 of 10 models agree, 0 differ"
    rows = json.loads(FILE.read_text())[:2]
    rows[0]["forward"][0]["count"] += 1
    rows[1]["parameters"] += 1
    changed = tmp_path / "models.json"
    changed.write_text(json.dumps(rows))
    found = CliRunner().invoke(APP, ["validate", "--models", str(changed)])
    assert found.exit_code == 1
    assert found.stderr.splitlines()[-1] == "0 of 2 models agree, 2 differ"
    rows[0]["config"] = {"architectures": ["NoSuchModel"], "model_type": "no_such_model"}
    changed.write_text(json.dumps(rows[:1]))
    found = CliRunner().invoke(APP, ["validate", "--models", str(changed)])
    assert found.exit_code == 1, "nothing was compared"
    assert "1 not compared" in found.stderr


def test_parameters_alone_need_no_matmuls(tmp_path: Path) -> None:
    """A config with the number of parameters is enough, and matmuls that differ are not seen."""
    rows = json.loads(FILE.read_text())[:2]
    changed = tmp_path / "models.json"
    rows[0]["forward"][0]["count"] += 1
    rows[1] = {word: rows[1][word] for word in ("name", "config", "parameters")}
    changed.write_text(json.dumps(rows))
    command = ["validate", "--models", str(changed)]
    refused = CliRunner().invoke(APP, command)
    assert refused.exit_code != 0
    assert "record 2 lacks parameters_by_name: without them --parameters-alone" in str(refused.exception)
    found = CliRunner().invoke(APP, [*command, "--parameters-alone"])
    assert found.exit_code == 0, found.output
    assert found.stderr.splitlines()[-1] == "the parameters of 2 of 2 models agree, 0 differ"
    rows[1]["parameters"] += 1
    named = rows[0]["parameters_by_name"]
    named[next(name for name in named if "mlp" in name)] += 1
    changed.write_text(json.dumps(rows))
    found = CliRunner().invoke(APP, [*command, "--parameters-alone"])
    assert found.exit_code == 1
    assert found.stderr.splitlines()[-1] == "the parameters of 0 of 2 models agree, 2 differ"
    quantities = [
        (row.quantity, row.theirs - row.ours) for row in check_parameters(read_models(changed, True)[1]).differences
    ]
    assert quantities == [("parameters", 1), ("weights of the graph", 1)]


def test_parameters_of_published_checkpoints_are_compared_without_their_matmuls() -> None:
    file = FILE.parents[1] / "models" / "checkpoint_configs.json"
    found = CliRunner().invoke(APP, ["validate", "--models", str(file), "--parameters-alone"])
    assert found.exit_code == 0, found.output
    assert found.stderr.splitlines()[-1] == "the parameters of 45 of 45 models agree, 0 differ"


def test_parameters_alone_are_those_of_models() -> None:
    found = CliRunner().invoke(APP, ["validate", "--reference", "--parameters-alone"])
    assert found.exit_code != 0
    assert str(found.exception) == "--parameters-alone is for recorded models: it needs --models FILE"


def other(value: Any) -> Any:
    """Another value of the same type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value * 2 or 1
        case None:
            return 8
        case str():
            return f"{value}-other"
        case list():
            return value[:-1] if value else [1]
        case _:
            return {**value, "partial_rotary_factor": 0.125}


def meaning(config: Mapping[str, Any]) -> object:
    """The card of a config, or the reason why there is none."""
    try:
        return from_hugging_face(config, name="model")
    except UsageError as reason:
        return str(reason)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_no_key_is_ignored_in_silence(name: str) -> None:
    config = MODELS[name].config
    card, nested = meaning(config), "text_config" in config
    text: Mapping[str, Any] = config.get("text_config", {})
    for key, value in config.items():
        if key not in WITHOUT_EFFECT and key != "attn_config" and not (nested and key in WHOLE):
            changed = meaning({**config, key: other(value)})
            assert changed != card or key in UNUSED_WHERE, key
    for key, value in text.items():
        if key not in (*WITHOUT_EFFECT, "tie_word_embeddings"):
            changed = meaning({**config, "text_config": {**text, key: other(value)}})
            assert changed != card or key in UNUSED_WHERE, key
    assert "made_up" in str(meaning({**config, "made_up": 2}))
    assert not nested or "made_up" in str(meaning({**config, "text_config": {**text, "made_up": 2}}))


TIED: Mapping[str, tuple[bool, bool, bool, bool, bool, bool]] = {
    # The whole model's tie_word_embeddings is absent, true, or false; the text model's true or false.
    "mistral-small-3.1": (True, True, True, True, False, False),
    "qwen3-vl-8b": (False, False, True, True, False, False),
    "llava-1.5-7b": (True, False, True, True, True, False),
    "llama4-scout": (True, False, True, False, True, False),
    "voxtral-mini-3b": (False, False, False, False, False, False),
}
"""By model: whether its own code ties the tables of embedding and head."""


@pytest.mark.parametrize("name", TIED)
def test_tables_of_a_whole_model_are_tied_as_its_own_code_ties_them(name: str) -> None:
    config = {key: value for key, value in MODELS[name].config.items() if key != "tie_word_embeddings"}
    made = []
    for whole in ({}, {"tie_word_embeddings": True}, {"tie_word_embeddings": False}):
        for tied in (True, False):
            text = {**config["text_config"], "tie_word_embeddings": tied}
            made.append(from_hugging_face({**config, **whole, "text_config": text}, name="whole").tied)
    assert tuple(made) == TIED[name]


def test_a_text_model_that_is_not_read_is_named() -> None:
    config = {**MODELS["llava-1.5-7b"].config, "text_config": {"model_type": "mamba"}}
    with pytest.raises(UsageError, match="LlavaForConditionalGeneration with the text model 'mamba' is not supported"):
        from_hugging_face(config, name="whole")


WHOLE = (*OTHER_PARTS, "tie_word_embeddings")
"""Keys of a whole model that its text model does not read, or reads by a rule that has a test of its own."""

WRONG: tuple[Any, ...] = (None, True, "x", "", -1, 0, 1.5, math.inf, 10**30, [], [1], ["x"], [[1]], {}, {"a": 1})
"""Values that hardly any key takes."""

FIRST = {str(model.config["architectures"]): name for name, model in reversed(MODELS.items())}
"""A model of each architecture."""


@pytest.mark.parametrize("name", sorted(set(FIRST.values())))
def test_wrong_values_are_refused_or_read(name: str) -> None:
    config = MODELS[name].config
    for number, key in enumerate(config):
        # The usual run has a fifth of the values for each key, all of them for every five keys.
        for value in WRONG[number % EVERY :: EVERY]:
            meaning({**config, key: value})
        meaning({**config, key: {"rope_type": [1], "factor": "x", "mscale_all_dim": 10**400}})


def test_masked_keys_are_not_confused_with_small_heads() -> None:
    ours: Counter[Row] = Counter({("bmm", (8, 32, 16, 16)): 4})
    theirs: dict[Row, int] = {("bmm", (8, 32, 32, 16)): 2, ("bmm", (8, 32, 16, 32)): 2}
    assert matched(theirs, ours) == (("keys that a mask leaves out are computed",), [])
    assert len(matched({**theirs, ("bmm", (8, 32, 32, 16)): 3}, ours)[1]) == 1
    assert len(matched(theirs, ours + ours)[1]) == 1


def test_a_config_whose_layers_are_all_dense_has_no_experts() -> None:
    config = {**MODELS["deepseek-v3"].config, "first_k_dense_replace": 61}
    card = from_hugging_face(config, name="dense")
    assert (card.experts, {kind.channel_mixer for kind in card.kinds.values()}) == (0, {"feed_forward"})


def test_rows_that_are_not_in_the_format_are_named(tmp_path: Path) -> None:
    path = tmp_path / "models.json"
    for content, message in (
        ({}, "are a list"),
        ([{"config": {}}], "record 1 lacks parameters_by_name: without them --parameters-alone"),
        ([{"config": 3, "parameters_by_name": {}}], "record 1 lacks a mapping config or parameters_by_name"),
        ([{"config": {}, "parameters": 1, "parameters_by_name": {}}], "without matmuls --parameters-alone compares"),
        (
            [{"config": {}, "parameters": 1, "parameters_by_name": {}, "forward": [{"op": "mm"}]}],
            "a matmul has op, dims",
        ),
        ([{"config": {}, "parameters_by_name": {"a": "x"}, "forward": []}], "parameters of 'a' must be a whole number"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(UsageError, match=message):
            read_models(path)
    record = json.loads(FILE.read_text())[0]
    for wrong, message in (
        ({"decode": {}}, "record 1: decode must be a list of matmuls"),
        ({"kv_cache_bytes": "1"}, "record 1: kv_cache_bytes must be a whole number"),
    ):
        path.write_text(json.dumps([{**record, **wrong}]))
        with pytest.raises(UsageError, match=message):
            read_models(path)


def test_a_step_of_decoding_that_differs_is_named() -> None:
    """`decode_steps.json` has all recorded steps: one of them, as the command checks it, and then changed."""
    step = next(each for each in json.loads(STEPS.read_text()) if each["name"] in MODELS)
    rows = {(op, tuple(dims)): count for op, dims, count in step["decode"]}
    model = replace(
        MODELS[step["name"]], batch=step["batch"], seq=step["seq"], decode=rows, cache=step["kv_cache_bytes"]
    )
    kept = [
        each for each in check_model(model).differences if each.quantity.startswith(("decode", "bytes of the cache"))
    ]
    assert kept == []
    (first, count), *_ = rows.items()
    changed = check_model(replace(model, decode={**rows, first: count + 1}, cache=model.cache and model.cache + 1))
    assert {each.quantity for each in changed.differences} >= {
        f"decode: {first[0]} {[*first[1]]}",
        "bytes of the cache",
    }
