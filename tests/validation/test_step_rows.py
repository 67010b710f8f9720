"""Files of published step times: what rows mean, what is refused, the two parts, the command."""

import csv
from pathlib import Path

import pytest

from stagedb import validation
from stagedb.errors import UsageError
from stagedb.frameworks.profiles import FRAMEWORK_PROFILES
from stagedb.graphs.model_graph import build_graph
from stagedb.lowering import program_of
from stagedb.lowering.program import IndexedGraph, lower
from stagedb.memory import memory_of, peak_of
from stagedb.models import load_card
from stagedb.systems import system_names
from stagedb.timing import timed_step
from stagedb.validation.step_rows import (
    CALIBRATED,
    CLUSTERS,
    COLUMNS,
    GPUS,
    HELD_OUT,
    NOT_READ,
    SEED,
    StepRow,
    job_of,
    parts,
    read_steps,
    split,
)
from stagedb.validation.step_times import plan_of

KNOWN = Path(validation.__file__).parent / "known_steps.csv"

SMALL = {
    "source": "a cluster", "model": "gpt2", "gpus": "2", "gpu": "H100-80GB", "dp": "2", "micro_batch_size": "2",
    "global_batch_size": "8", "seq_len": "512", "dtype": "bf16", "zero": "3", "seconds": "0.05",
}  # fmt: skip


def row(**cells: str) -> StepRow:
    return StepRow(2, {**dict.fromkeys(COLUMNS, ""), "framework": "", "kernels": "", **SMALL, **cells})


def written(tmp_path: Path, *rows: StepRow) -> Path:
    path = tmp_path / "steps.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0].cells))
        writer.writeheader()
        writer.writerows(each.cells for each in rows)
    return path


def test_every_known_row_has_a_plan() -> None:
    for each in read_steps(KNOWN):
        job = job_of(each)
        assert plan_of(job).world == int(each.cells["gpus"])
        assert each.seconds > 0


@pytest.mark.parametrize(
    ("cells", "framework", "words"),
    [
        ({}, "torch-fsdp", {"recipe": "torch", "kernels": "eager"}),
        ({"zero": "1"}, "megatron-core", {"recipe": "megatron"}),
        ({"zero": ""}, "megatron-core", {}),
        ({"framework": "torchtitan", "kernels": "compile"}, "torchtitan", {"kernels": "fused", "param_dtype": "fp32"}),
        ({"framework": "torchtitan", "kernels": "eager"}, "torchtitan", {"kernels": "eager"}),
        ({"framework": "nemo", "zero": "1", "tp": "2", "dp": "1", "recompute": "core"}, "nemo", {"sp": True}),
        ({"framework": "megatron-2021", "zero": "", "recompute": "core"}, "megatron-2021", {"recompute": "core"}),
    ],
)
def test_a_row_has_the_words_of_its_framework(cells: dict[str, str], framework: str, words: dict[str, object]) -> None:
    job = job_of(row(**cells))
    assert job.profile.name == job.system.overlap.framework == framework
    assert {name: job.words.get(name) for name in words} == words


def test_chunks_of_a_framework_count_the_ends() -> None:
    cells = {"model": "llama3.1-405b", "framework": "nemo", "zero": "1", "gpus": "128", "tp": "8", "pp": "8", "cp": "2"}
    made = plan_of(job_of(row(**cells, virtual_stages="8", dp="1", global_batch_size="16")))
    assert (made.counted_ends, made.chunk_layers(126)[0]) == ("both", 1)


@pytest.mark.parametrize(
    ("cells", "chunks", "expert_tp"),
    [
        ({"model": "qwen3-235b-a22b", "tp": "2", "pp": "8", "virtual_stages": "4", "ep": "32", "dp": "16"}, 32, False),
        ({"model": "qwen3-235b-a22b", "tp": "2", "pp": "8", "virtual_stages": "4", "ep": "16", "dp": "16"}, 32, True),
        ({"model": "deepseek-v3", "tp": "2", "pp": "16", "virtual_stages": "2", "ep": "64", "dp": "32"}, 32, False),
        ({"model": "deepseek-v3", "tp": "1", "pp": "8", "virtual_stages": "4", "ep": "64", "dp": "64"}, 32, True),
    ],
)
def test_layouts_of_experts_and_uneven_chunks_are_accepted(cells: dict[str, str], chunks: int, expert_tp: bool) -> None:
    ranks = int(cells["tp"]) * int(cells["pp"]) * int(cells["dp"])
    job = job_of(row(framework="nemo", zero="1", **cells | {"global_batch_size": "2048", "gpus": str(ranks)}))
    made = plan_of(job)
    layers = made.chunk_layers(job.card.layers)
    assert (len(layers), sum(layers), made.options.expert_tp) == (chunks, job.card.layers, expert_tp)
    assert max(layers) - min(layers[1:-1]) <= 1


def test_what_no_framework_leaves_open_is_not_guessed() -> None:
    wrong = {"model": "qwen3-235b-a22b", "tp": "1", "ep": "3", "dp": "16", "gpus": "16", "zero": "1"}
    with pytest.raises(UsageError, match="ep 3"):
        plan_of(job_of(row(framework="nemo", **wrong, global_batch_size="64")))


def test_a_table_of_positions_is_as_long_as_the_sequences() -> None:
    assert job_of(row(seq_len="4096")).card.max_positions == 4096
    assert job_of(row()).card.max_positions == 1024


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"model": "gpt9"}, "model is 'gpt9', and the library has no such card"),
        ({"gpu": "Z80"}, "gpu is 'Z80', and no preset is of this accelerator"),
        ({"framework": "jax"}, "unknown framework 'jax': --framework is one of torch-fsdp, "),
        ({"kernels": "triton"}, "kernels is 'triton', which torch-fsdp does not have: its profile has eager, compile"),
        ({"recompute": "some"}, "recompute is 'some', which torch-fsdp does not have: its profile has full, core"),
        ({"capacity_factor": "-1"}, "capacity_factor is '-1', and it takes a number above 0"),
        ({"capacity_factor": "full"}, "capacity_factor is 'full', and it takes a number above 0"),
        ({"gpus": "3"}, "gpus is 3, and dp x tp x pp x cp is 2"),
        ({"dp": "two"}, "dp is 'two', and it takes a whole number"),
        ({"seconds": "-1"}, "seconds is '-1', and a step takes a positive number"),
        ({"global_batch_size": "7"}, "a global batch of 7 is not divisible by micro-batch 2 x dp 2 = 4"),
        ({"dp": "", "tp": "0"}, "tp is 0: --tp takes 1 or more"),
        ({"seq_len": "999999999"}, "FLOPs or bytes, more than the 64 bits that are counted: take a smaller --seq-len"),
        ({"model": "deepseek-v3 4 layers"}, "the layers of deepseek-v3 are of several kinds"),
    ],
)
def test_a_row_that_no_plan_can_express_has_the_reason(cells: dict[str, str], reason: str) -> None:
    (found,) = validation.predict([row(**cells)])
    assert found.seconds is None
    assert reason in found.reason


def test_files_that_are_no_tables_of_steps_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "steps.csv"
    path.write_text("source,model\na,b\n")
    with pytest.raises(UsageError, match=r"has no column gpus: --steps takes the columns source, model, gpus"):
        read_steps(path)
    path.write_text(",".join(COLUMNS) + "\n")
    with pytest.raises(UsageError, match="has no rows"):
        read_steps(path)
    path = written(tmp_path, row())
    path.write_text(path.read_text() + "short,row\n")
    with pytest.raises(UsageError, match="line 3: 2 cells under"):
        read_steps(path)


def test_the_split_is_drawn_and_leaves_half_of_each_source_out() -> None:
    rows = read_steps(KNOWN)
    found = parts(rows)
    for source in {each.source for each in rows}:
        own = [found[each] for each in rows if each.source == source]
        assert own.count(CALIBRATED) == len(own) // 2
        assert own.count(HELD_OUT) == len(own) - len(own) // 2
    assert split(rows) == split(rows[::-1])
    assert split(rows, SEED + 1) != split(rows)
    assert set(parts([row()]).values()) == {NOT_READ}


def test_the_names_of_accelerators_mean_presets() -> None:
    assert set(GPUS.values()) <= {*system_names(), "a100-40gb", "b300", "gb300-nvl72", "l40s"}


def test_a_source_names_the_network_of_its_cluster() -> None:
    cells = {"gpu": "A100-80GB", "framework": "megatron-deepspeed", "zero": "1"}
    usual = job_of(row(**cells)).system
    narrow = job_of(row(**cells, source="BLOOM 176B prequel A100 (Jean Zay)")).system
    assert (usual.name, narrow.name) == ("a100-80gb", "a100-80gb-400g")
    assert narrow.accelerator == usual.accelerator
    assert narrow.tables == usual.tables
    assert [float(each.dimensions[-1].bandwidth) * 8 for each in (usual, narrow)] == [200, 50]  # Gb/s a GPU
    assert job_of(row(source="BLOOM 176B prequel A100 (Jean Zay)")).system.name == "h100"
    assert {name for presets in CLUSTERS.values() for pair in presets.items() for name in pair} <= set(system_names())


def test_a_run_that_drops_tokens_names_its_capacity() -> None:
    cells = {"model": "mixtral-8x7b", "gpus": "8", "dp": "8", "ep": "8", "zero": "1", "micro_batch_size": "1"}
    dropped, all_of_them = (row(**cells, capacity_factor=factor) for factor in ("1.25", ""))
    assert (plan_of(job_of(dropped)).capacity_factor, plan_of(job_of(all_of_them)).capacity_factor) == (1.25, None)
    assert dropped.title == f"{all_of_them.title} capacity 1.25"


def test_a_source_names_what_configured_its_framework() -> None:
    cells = {"framework": "megatron-core", "zero": "1", "tp": "2", "dp": "1"}
    plain, bridge = (job_of(row(**cells, source=source)) for source in ("SimuMax B200", "Megatron-Bridge 25.09 H100"))
    assert (plain.profile.name, bridge.profile.name) == ("megatron-core", "megatron-bridge")
    assert (plain.system.overlap.chunked, bridge.system.overlap.chunked) == ((), ("tp",))
    assert bridge.words["reduce_dtype"] == "bf16"
    other = job_of(row(**cells | {"framework": "nemo"}, source="Megatron-Bridge 25.09 H100"))
    assert other.profile.name == "nemo"


def test_every_framework_has_a_recipe_and_a_source() -> None:
    for name, each in FRAMEWORK_PROFILES.items():
        assert (each.name, bool(each.source), bool(each.versions)) == (name, True, True)
        assert each.plan_words({"tp": 2, "zero": 3, "cp": 2})["recipe"] == each.recipe


def test_the_loss_of_llm_foundry_reads_logits_in_the_format_of_activations() -> None:
    words = FRAMEWORK_PROFILES["llm-foundry"].plan_words
    assert [words(given)["logits_dtype"] for given in ({}, {"dtype": "fp16"}, {"logits_dtype": "fp32"})] == [
        "bf16",
        "fp16",
        "fp32",
    ]
    assert "logits_dtype" not in FRAMEWORK_PROFILES["torchtitan"].plan_words({"dtype": "bf16"})


def test_a_published_run_of_llm_foundry_fits_into_its_accelerator() -> None:
    """Its logits in fp32 and their gradient would take 15 GB more than 80."""
    job = next(job_of(each) for each in read_steps(KNOWN) if each.title == "mpt-760m dp 8 mb 24 batch 384 seq 2048")
    plan = plan_of(job)
    copied = program_of(job.card, plan)
    room = job.system.accelerator.room
    assert room is not None
    assert 0.9 * room < peak_of(memory_of(copied)) < room


@pytest.mark.parametrize("format", ["", " fp8"])
def test_published_runs_between_the_name_and_the_memory_of_an_h100_fit(format: str) -> None:
    """NVIDIA ran it on accelerators of 80 GB by name. CUDA has 84.9e9 bytes of these, the context and libraries 2.1."""
    title = f"llama3.1-8b cp 2 dp 4 batch 128 seq 8192{format}"
    job = next(job_of(each) for each in read_steps(KNOWN) if each.title == title)
    plan = plan_of(job)
    peak = peak_of(memory_of(program_of(job.card, plan)))
    room = job.system.accelerator.room
    assert job.system.name == "h100" and room is not None
    assert 80e9 < peak < room < 84.9e9


def test_an_empty_dp_is_what_the_other_degrees_leave() -> None:
    assert plan_of(job_of(row(dp="", gpus="2"))).dp == 2
    assert plan_of(job_of(row(dp="", gpus="16", tp="2", cp="2", zero="1"))).dp == 4
    alone = job_of(row(dp="", gpus="1", zero="3"))
    assert (alone.words["dp"], alone.words["zero"]) == (1, 0)


def test_a_row_is_not_refused_for_what_a_file_has_no_word_for() -> None:
    cells = {"model": "glm-4.5", "dp": "8", "gpus": "8", "ep": "8", "seq_len": "4096", "zero": "1", "framework": "nemo"}
    cells["micro_batch_size"] = "1"
    assert plan_of(job_of(row(**cells))).seq_len == 4096
    tensor = {"framework": "torchtitan", "tp": "2", "dp": "1", "zero": "3"}
    assert plan_of(job_of(row(**tensor))).options.clip_norm is False
    assert plan_of(job_of(row(framework="torchtitan"))).options.clip_norm is True


def test_a_table_of_attention_has_no_scores_of_an_index() -> None:
    """DeepSeek-V3.2 and GLM-5 choose keys by scores that are no attention kernel."""
    card = load_card("deepseek-v3.2")
    job = job_of(row(model="deepseek-v3.2", zero="1", ep="8", dp="8", gpus="8", seq_len="4096", micro_batch_size="1"))
    plan = plan_of(job)
    graph = IndexedGraph.of(build_graph(card, plan.options))
    _, found = timed_step(lower(graph, plan).workload, job.system, None, ())
    assert 0 < found.step < 60 * 10**9
