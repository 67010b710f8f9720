"""Every command on a store: what it prints, what it refuses, and with which exit status."""

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stagedb.store import Store, current_user
from tests.cli.conftest import Run
from tests.runs.recordings import step
from tests.traces.crafted import measured, sound, write

PLAN = ("--tp", "2", "--pp", "2", "--ranks", "8")


def rows(run: Run, *arguments: str) -> list[dict[str, Any]]:
    ran = run(*arguments, "-f", "json")
    assert ran.status == 0, ran.err
    found: list[dict[str, Any]] = json.loads(ran.out)
    return found


def held(run: Run) -> list[tuple[str, str]]:
    return [(row["kind"], row["id"]) for row in rows(run, "ls")]


def test_a_graph_is_built_once_for_all_degrees(run: Run, tiny: str) -> None:
    first = run("build", tiny)
    assert first.status == 0, first.err
    assert first.out.startswith("built graph ")
    again = run("build", tiny)
    assert again.out.startswith("already in the store: graph ")
    assert run("instantiate", tiny, "--tp", "2").status == 0
    assert run("instantiate", tiny, "--tp", "1", "--dp", "2").status == 0
    kinds = [kind for kind, _ in held(run)]
    assert kinds == ["graph", "instance", "instance"]


def test_the_same_plan_twice_is_one_instance(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).out.startswith("made instance ")
    again = run("instantiate", tiny, "--tp", "2", "--pp", "2", "--dp", "2")
    assert again.out.startswith("already in the store: instance ")
    assert "8 ranks in 2 classes" in again.out
    assert len(rows(run, "ls", "instances")) == 1


def test_implied_words_are_noted(run: Run, tiny: str, tmp_path: Path) -> None:
    words = ("--pp", "2", "--schedule", "zb-v", "--global-batch-size", "8")
    made = run("instantiate", tiny, *words)
    assert "--virtual-stages 2, as --schedule zb-v always has" in made.err
    again = run("export", "--model", tiny, *words, "--virtual-stages", "2", "--out", str(tmp_path / "traces"))
    assert "always has" not in again.err
    assert made.out.split()[2] in again.out  # one instance


def test_few_micro_batches_in_a_pipeline_are_noted(run: Run, tiny: str) -> None:
    ran = run("instantiate", tiny, *PLAN)
    assert "idles 50% of the step" in ran.err
    assert "--global-batch-size 16" in ran.err
    assert "idles" not in run("instantiate", tiny, *PLAN, "--global-batch-size", "16").err
    assert "idles" not in run("instantiate", tiny, "--tp", "2").err
    assert run("instantiate", tiny, *PLAN, "--quiet").err == ""


def test_requests_one_after_the_other_are_noted(run: Run, tiny: str) -> None:
    words = ("--workflow", "decode", "--cache-len", "7", "--dp", "2", "--global-batch-size", "16")
    ran = run("memory", "--model", tiny, *words, "--no-keep")
    assert "runs its 8 requests one after the other" in ran.err
    assert "--micro-batch-size 8 has all of them in one pass" in ran.err
    assert "one after" not in run("memory", "--model", tiny, *words, "--micro-batch-size", "8", "--no-keep").err
    assert "one after" not in run("memory", "--model", tiny, "--dp", "2", "--global-batch-size", "16", "--no-keep").err


def test_a_plan_may_come_from_a_file(run: Run, tiny: str, tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text("tp: 2\npp: 2\nmicro-batch-size: 3\n", encoding="utf-8")
    assert run("instantiate", tiny, "--plan", "plan.yaml", "--ranks", "8", "--name", "mine").status == 0
    shown = {row["property"]: row["value"] for row in rows(run, "show", "mine")}
    assert (shown["tp"], shown["pp"], shown["dp"], shown["micro_batch_size"]) == (2, 2, 2, 3)
    assert shown["ranks"] == 8
    assert shown["seq_len"] == 32


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (("instantiate", "lama3-8b"), "llama3-8b"),
        (("build", "lama3-8b"), "stagedb models"),
        (("instantiate", "TINY", "--tp", "3"), "--tp 2 or --tp 4"),
        (("instantiate", "TINY", "--tp", "2", "--pp", "2", "--ranks", "6"), "--ranks 4 or --ranks 8"),
        (
            ("instantiate", "TINY", "--dp", "2", "--global-batch-size", "3"),
            "--global-batch-size 2 or --global-batch-size 4",
        ),
        (("instantiate", "TINY", "--schedule", "zigzag"), "--schedule"),
        (("instantiate", "TINY", "--dtype", "int3"), "--dtype"),
        (("instantiate", "TINY", "--recipe", "mega"), "--recipe"),
        (("instantiate", "TINY", "--plan", "missing.yaml"), "missing.yaml"),
        (("export", "missing-instance", "--ranks", "8"), "stagedb ls"),
        (("export", "one", "--model", "TINY"), "leave one out"),
        (("export", "--model", "TINY", "--ranks", "2", "--only", "5"), "--only"),
        (("export", "--model", "TINY", "--out", ".", "--force"), "the current directory"),
        (("export", "--model", "TINY", "--out", "tiny.yaml", "--packed", "--force"), "not a packed trace set"),
        (("query", "CREATE (n:Op)"), "CREATE"),
        (("query", "MATCH (n:Op) SET n.flops = 1"), "SET"),
        (("query", "bytes_by_axes"), "bytes_by_axis"),
        (("query", "RETURN $x AS x", "-p", "x"), "--param"),
        (("query", "bytes_by_axis"), "stagedb instantiate"),
        (("show", "nothing"), "stagedb ls"),
        (("rm", "nothing"), "stagedb ls"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_refused_request_names_the_way_out_and_changes_nothing(
    run: Run, tiny: str, tmp_path: Path, arguments: tuple[str, ...], printed: str
) -> None:
    before = sorted(tmp_path.iterdir())
    ran = run(*(tiny if word == "TINY" else word for word in arguments))
    assert ran.status == 2, ran
    assert printed in ran.err
    assert "Traceback" not in ran.err
    assert ran.out == ""
    assert held(run) == []
    assert sorted(tmp_path.iterdir()) == before


def test_a_graph_is_enough_where_its_card_is_missing(run: Run, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("instantiate", tiny, *PLAN, "--sp").status == 0
    made = held(run)
    instance = next(id for kind, id in made if kind == "instance")
    graph = next(id for kind, id in made if kind == "graph")
    assert run("rm", instance).status == 0
    Path(tiny).unlink()
    for word, options in (("tiny", ("--sp",)), (graph, ())):
        ran = run("instantiate", word, *PLAN, *options)
        assert ran.status == 0, ran.err
        assert held(run) == made
        assert run("rm", instance).status == 0


def test_a_graph_is_not_taken_for_one_with_other_options(run: Run, tiny: str) -> None:
    assert run("build", tiny, "--sp").status == 0
    Path(tiny).unlink()
    graph = held(run)[0][1]
    by_name = run("instantiate", "tiny", *PLAN)
    assert by_name.status == 2
    assert graph in by_name.err
    by_id = run("instantiate", graph, *PLAN, "--no-sp")
    assert by_id.status == 2
    assert "sp" in by_id.err
    assert [kind for kind, _ in held(run)] == ["graph"]


def test_export_makes_what_is_missing_and_validate_finds_it_sound(run: Run, tiny: str, tmp_path: Path) -> None:
    ran = run("export", "--model", tiny, *PLAN, "--out", "traces")
    assert ran.status == 0, ran.err
    assert "8 traces" in ran.out
    assert [kind for kind, _ in held(run)] == ["graph", "instance"]
    names = {file.name for file in (tmp_path / "traces").iterdir()}
    assert names >= {f"tiny.{rank}.et" for rank in range(8)} | {"tiny.json"}
    checked = run("validate", "traces")
    assert checked.status == 0, checked.err
    assert checked.out.startswith("traces: sound")


def test_a_prefill_is_exported_with_the_decode_that_gets_its_caches(run: Run, tiny: str, tmp_path: Path) -> None:
    step = ("--micro-batch-size", "2", "--seq-len")
    prompt = run("instantiate", tiny, "--workflow", "prefill", *step, "4", "--tp", "2", "--name", "prompt")
    answer = run("instantiate", tiny, "--workflow", "decode", *step, "1", "--cache-len", "4", "--name", "answer")
    assert (prompt.status, answer.status) == (0, 0), prompt.err + answer.err
    ran = run("export", "prompt", "--send-to", "answer", "--steps", "2", "--out", "engines")
    assert ran.status == 0, ran.err
    assert "engines: 3 traces of prompt (2 ranks, instance " in ran.out
    assert "; caches sent to 1 rank of answer, instance " in ran.out
    assert " and 1 more, one after another), " in ran.out
    assert run("validate", "engines").out.startswith("engines: sound")
    refused = run("export", "answer", "--send-to", "prompt", "--out", "no")
    assert "answer is a step of decode, and a prefill is what sends caches" in refused.err
    assert not (tmp_path / "no").exists()


def test_validate_prints_faults_as_rows(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("export", "--model", tiny, *PLAN, "--out", "traces").status == 0
    (tmp_path / "traces" / "tiny.3.et").unlink()
    ran = run("validate", "traces", "-f", "json")
    assert ran.status == 1
    assert json.loads(ran.out)


def test_validate_prints_one_row_a_kind_and_all_faults_on_request(run: Run, tmp_path: Path) -> None:
    nodes = {rank: [node.but(num_ops=None) for node in row] for rank, row in sound().items()}
    nodes[1][1] = dataclasses.replace(nodes[1][1], data_deps=(1, 5))
    nodes[1][4] = dataclasses.replace(nodes[1][4], data_deps=(2,))
    write(tmp_path / "theirs", nodes)
    ran = run("validate", "theirs", "-f", "json")
    assert ran.status == 1
    rows = json.loads(ran.out)
    assert [(row["rule"], row["count"], row["level"]) for row in rows] == [
        ("cycle", 1, "fault"),
        ("compute", 8, "fault"),
    ]
    assert "not sound: faults in 9 places, kinds of faults: 2; --all prints each place" in ran.err
    everything = json.loads(run("validate", "theirs", "--all", "-f", "json").out)
    assert [row["rule"] for row in everything] == ["cycle"] + 8 * ["compute"]
    refused = run("validate", "--reference", "--all")
    assert refused.status == 2 and "--all" in refused.err


def test_validate_finds_a_measured_set_of_another_tool_sound(run: Run, tmp_path: Path) -> None:
    write(tmp_path / "theirs", measured())
    ran = run("validate", "theirs", "-f", "json")
    assert ran.status == 0
    assert {row["level"] for row in json.loads(ran.out)} == {"convention"}
    assert "theirs: sound: 4 ranks" in ran.err


def test_an_existing_directory_is_replaced_on_request_only(run: Run, tiny: str, tmp_path: Path) -> None:
    export = ("export", "--model", tiny, *PLAN, "--out", "traces")
    assert run(*export).status == 0
    (tmp_path / "traces" / "note").write_text("mine", encoding="utf-8")
    refused = run(*export)
    assert refused.status == 2
    assert "--force" in refused.err
    assert (tmp_path / "traces" / "note").exists()
    mixed = run(*export, "--force")
    assert mixed.status == 2
    assert "other files in it (note; move them first)" in mixed.err
    (tmp_path / "traces" / "note").rename(tmp_path / "note")
    (tmp_path / "traces" / "tiny.3.et").write_bytes(b"half")
    assert run(*export, "--force").status == 0
    assert run("validate", "traces").status == 0


def test_resuming_a_finished_export_prints_what_was_done(run: Run, tiny: str, tmp_path: Path) -> None:
    export = ("export", "--model", tiny, *PLAN, "--out", "traces", "--resume")
    assert "complete already" not in run(*export).out
    assert "traces was complete already, nothing was written: 8 traces" in run(*export).out
    (tmp_path / "traces" / "tiny.3.et").unlink()
    (tmp_path / "traces" / "tiny.4.et").write_bytes(b"half")
    assert "2 files were missing or damaged and written again (tiny.3.et, tiny.4.et)" in run(*export).out
    assert run("validate", "traces").status == 0


def test_the_newest_instance_is_exported_at_another_size(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    ran = run("export", "--ranks", "32", "--only", "0-3,31")
    assert ran.status == 0, ran.err
    traces = sorted(file.name for file in (tmp_path / "tiny-32").glob("*.et"))
    assert traces == [f"tiny.{rank}.et" for rank in (0, 1, 2, 3, 31)]
    instances = rows(run, "ls", "instances")
    assert [row["ranks"] for row in instances] == [32, 8]
    assert instances[0]["plan"].split()[:6] == ["tp", "2", "pp", "2", "dp", "8"]


def test_an_instance_is_exported_under_a_changed_plan(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN, "--name", "first").status == 0
    assert run("instantiate", tiny, "--tp", "4", "--name", "second").status == 0
    assert run("export", "first", "--dtype", "fp32", "--out", "fp32").status == 0
    newest = rows(run, "ls", "instances")[0]
    shown = {row["property"]: row["value"] for row in rows(run, "show", newest["id"])}
    assert (shown["tp"], shown["dtype"], shown["param_dtype"], shown["dp"]) == (2, "fp32", "fp32", 2)


def test_other_parameters_bring_the_formats_that_follow_from_them(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, "--recipe", "megatron", "--name", "first").status == 0
    ran = run("export", "first", "--param-dtype", "fp32", "--out", "fp32")
    assert ran.status == 0, ran.err
    shown = {row["property"]: row["value"] for row in rows(run, "show", rows(run, "ls", "instances")[0]["id"])}
    assert (shown["dtype"], shown["param_dtype"], shown["master_dtype"]) == ("bf16", "fp32", "none")


def test_queries_answer_about_the_newest_instance_or_the_named_one(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, "--tp", "2", "--name", "two").status == 0
    assert run("instantiate", tiny, "--tp", "4", "--dp", "2", "--name", "eight").status == 0
    text = "MATCH (r:Rank {instance: $instance}) RETURN count(r) AS ranks"
    assert rows(run, "query", text) == [{"ranks": 8}]
    assert rows(run, "query", text, "--instance", "two") == [{"ranks": 2}]
    axes = {row["axis"] for row in rows(run, "query", "bytes_by_axis", "--instance", "two")}
    assert axes == {"tp"}
    assert rows(run, "query", "RETURN $x + 1 AS y", "-p", "x=41") == [{"y": 42}]
    assert rows(run, "query", "RETURN $x AS y", "-p", "x=forty two") == [{"y": "forty two"}]


def test_flops_by_layer_are_the_closed_forms(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN, "--global-batch-size", "8").status == 0
    found = rows(run, "query", "flops_by_layer")
    layers = [row for row in found if row["block"] == "layer"]
    assert [row["layer"] for row in layers] == [0, 1, 2, 3]
    assert [row["stage"] for row in layers] == [0, 0, 1, 1]
    sequences, seq, hidden = 8, 32, 64
    tokens = sequences * seq
    forward = (
        2 * tokens * hidden * (2 * 4 + 2 * 2) * 16 + 2 * tokens * hidden * 3 * 96 + 4 * sequences * 4 * seq**2 * 16
    )
    matmuls = forward - 4 * sequences * 4 * seq**2 * 16
    backward = 2 * matmuls + 10 * sequences * 4 * seq**2 * 16
    assert {(row["forward_flops"], row["backward_flops"], row["flops"]) for row in layers} == {
        (forward, backward, forward + backward)
    }
    head = [row for row in found if row["block"] == "head"]
    assert [row["forward_flops"] for row in head] == [2 * tokens * hidden * 256]
    assert found[-1]["block"] == "head"


def test_bytes_by_axis_are_the_closed_forms(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN, "--sp", "--global-batch-size", "8").status == 0
    found = {(row["axis"], row["kind"], row["phase"]): row for row in rows(run, "query", "bytes_by_axis")}
    hidden_bytes = 32 * 64 * 2
    # Four layers, two gathers each way; the head's; every rank of 8 puts in its half; 4 micro-batches on each dp rank.
    gathered = found["tp", "all_gather", "forward"]
    assert gathered["messages"] == (4 * 2 + 1) * 4 * 4
    assert gathered["bytes"] == gathered["messages"] * hidden_bytes // 2
    sent = found["pp", "send", "forward"]
    assert (sent["messages"], sent["bytes"]) == (4 * 4, 4 * 4 * hidden_bytes // 2)
    assert found["dp", "all_reduce", "backward"]["messages"] % 8 == 0


def test_the_largest_messages_come_in_order(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    sizes = [row["bytes"] for row in rows(run, "query", "largest_messages")]
    assert len(sizes) == 10
    assert sizes == sorted(sizes, reverse=True)
    text = "MATCH (o:Op {instance: $instance}) WHERE o.type IN ['collective', 'send'] RETURN max(o.comm_bytes) AS most"
    assert rows(run, "query", text) == [{"most": sizes[0]}]


def test_named_queries_give_the_columns_that_they_promise(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("import", str(step(0).write(tmp_path))).status == 0
    assert run("instantiate", tiny, *PLAN).status == 0
    assert run("profile", "--name", "mine").status == 0
    searched = run("search", "--model", tiny, "--ranks", "2", "--global-batch-size", "2", "--allow", "none")
    assert searched.status == 0, searched.err
    named = rows(run, "queries")
    # These have parameters without a default.
    newest = rows(run, "ls", "instances")[0]["id"]
    params = {
        "diff_work": ("-p", f"other={newest}"),
        "shared_operators": ("-p", f"other={newest}"),
        "diff_time": ("-p", "other=mine"),
        "fastest_plans": ("-p", "model=tiny"),
    }
    assert "'other' is missing" in run("query", "diff_work").err
    assert "'model' is missing" in run("query", "fastest_plans").err
    assert {row["name"] for row in named} >= {"bytes_by_axis", "flops_by_layer", "largest_messages"}
    for info in named:
        ran = run("query", info["name"], "-f", "csv", *params.get(info["name"], ()))
        assert ran.status == 0, ran.err
        assert ran.out.splitlines()[0].split(",") == info["columns"]


def test_queries_are_listed_by_subject_and_called_by_path_too(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    assert run("profile").status == 0
    named = rows(run, "queries")
    assert [row["subject"] for row in named] == sorted(row["subject"] for row in named)
    (path,) = [row for row in named if row["name"] == "critical_path"]
    assert (path["subject"], path["parameters"]) == ("critical_path", ["profile"])
    legs = rows(run, "query", "critical-path")
    for word in ("critical_path/critical-path", "analyze/critical_path/critical_path", "analyze/critical-path"):
        assert rows(run, "query", word) == legs != []
    header = run("queries").out.splitlines()[0]
    assert header.split() == ["name", "subject", "parameters", "asks"]
    assert header.index("asks") < 60  # on a terminal of 80 columns no name is broken
    assert "did you mean hotspots" in run("query", "communications/hotspots").err
    empty = run("query", "memory/memory-at-peak")
    assert "all layers together" in empty.err


def test_show_prints_a_graph_an_instance_and_its_classes(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN, "--name", "mine").status == 0
    shown = {row["property"]: row["value"] for row in rows(run, "show", "mine")}
    assert (shown["kind"], shown["name"], shown["model"], shown["classes"]) == ("instance", "mine", "tiny", 2)
    graph = {row["property"]: row["value"] for row in rows(run, "show", shown["graph"])}
    assert (graph["kind"], graph["recipe"], graph["H"], graph["attention"]) == ("graph", "torch", 64, "fused")
    classes = rows(run, "show", "mine", "--classes")
    assert [(row["stages"], row["layers"], row["ranks"]) for row in classes] == [([0], 2, 4), ([1], 2, 4)]


def test_instances_and_profiles_get_other_names(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    assert run("profile").status == 0
    before = {row["kind"]: row for row in rows(run, "ls")}
    printed = run("name", "tiny", "mine").out
    assert printed.startswith(f"mine now means instance {before['instance']['id']} (")
    assert run("name", before["profile"]["id"], " of mine ").status == 0
    after = {row["kind"]: row for row in rows(run, "ls")}
    assert (after["instance"]["name"], after["profile"]["name"]) == ("mine", "of mine")
    assert all(after[kind][word] == before[kind][word] for kind in before for word in ("id", "created"))
    assert rows(run, "query", "bytes_by_axis", "--instance", "mine") != []
    for arguments, expected in (
        (("nothing", "x"), "no graph, instance, profile, search or run 'nothing'"),
        ((before["graph"]["id"], "x"), "always has the name of its model, tiny"),
        (("mine", " "), "is not a name"),
        (("mine", "a\nb"), "is not a name"),
    ):
        refused = run("name", *arguments)
        assert refused.status == 2
        assert expected in refused.err
    assert {row["kind"]: row for row in rows(run, "ls")} == after


def test_what_a_runtime_gathers_in_another_way_is_noted(run: Run, tiny: str) -> None:
    chunks = ("--pp", "2", "--dp", "2", "--zero", "2", "--global-batch-size", "8")
    assert "keeps 3 chunks" not in run("instantiate", tiny, *chunks).err
    Path(tiny).write_text(Path(tiny).read_text().replace("layers: 4", "layers: 8"))
    noted = " ".join(run("instantiate", tiny, *chunks, "--virtual-stages", "4").err.split())
    assert "keeps 3 chunks of a stage gathered" in noted


def test_a_graph_with_instances_is_removed_on_request_only(run: Run, tiny: str, store: Store) -> None:
    assert run("instantiate", tiny, *PLAN, "--name", "mine").status == 0
    graph = next(id for kind, id in held(run) if kind == "graph")
    refused = run("rm", graph)
    assert refused.status == 2
    assert "--force" in refused.err
    assert len(held(run)) == 2
    removed = run("rm", graph, "--force")
    assert removed.status == 0
    assert removed.out.count("removed") == 2
    assert held(run) == []
    left = store.query("MATCH (n) WHERE NOT n:Store RETURN labels(n)[0] AS label, count(*) AS count")
    log = {"User", "Event", "Input"}
    assert {label for label, _ in left.rows if "est" not in label} <= log, "the log alone stays"


def test_the_reason_for_no_answer_is_printed(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    ran = run("query", "MATCH (o:Opp {instance: $instance}) RETURN o")
    assert "no node has the label Opp: did you mean Op?" in ran.err
    for asked in ("memory-at-peak", "MATCH (m:MemoryTensor {instance: $instance}) RETURN m.name AS name"):
        assert re.search(r"`stagedb memory \w+` does", run("query", asked).err)
    assert run("memory").status == 0
    for asked in ("memory-at-peak", "MATCH (m:MemoryTensor {instance: $instance, name: 'none'}) RETURN m.name AS name"):
        assert "is not computed yet" not in run("query", asked).err


def test_a_parameter_names_an_instance_as_its_option_does(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN, "--name", "mine").status == 0
    for asked in ("bytes_by_axis", "MATCH (o:Op {instance: $instance}) RETURN count(o) AS ops"):
        assert rows(run, "query", asked, "-p", "instance=mine") == rows(run, "query", asked, "--instance", "mine") != []
        assert "no instance 'nope'" in run("query", asked, "-p", "instance=nope").err
        both = run("query", asked, "-p", "instance=mine", "--instance", "mine")
        assert both.status == 2
        assert "leave one out" in both.err
    assert "no profile 'nope'" in run("query", "hotspots", "-p", "profile=nope").err


def test_a_word_after_a_query_is_what_it_is_about(run: Run, tiny: str, tmp_path: Path) -> None:
    """An instance, a profile or a run, by the kind of what the word names; or the only parameter."""
    for name, more in (("mine", ()), ("other", ("--zero", "1"))):
        assert run("instantiate", tiny, *PLAN, *more, "--name", name).status == 0
        assert run("profile", name, "--name", f"{name}-timed").status == 0
    run("import", str(step(0, 1).write(tmp_path)), "--name", "seen")
    for words, option in (
        (("bytes_by_axis", "mine"), "--instance"),
        (("MATCH (o:Op {instance: $instance}) RETURN count(o) AS ops", "mine"), "--instance"),
        (("critical_path", "mine"), "--instance"),
        (("critical_path", "mine-timed"), "--profile"),
        (("critical_path", "seen"), "--run"),
        (("clocks", "seen"), "--run"),
    ):
        query, word = words
        assert rows(run, "query", *words) == rows(run, "query", query, option, word) != []
    model = rows(run, "ls", "graphs")[0]["name"]
    assert rows(run, "query", "fastest-plans", model) == rows(run, "query", "fastest-plans", "-p", f"model={model}")
    for arguments, error in (
        (("bytes_by_axis", "nope"), "no instance 'nope'"),
        (("bytes_by_axis", "mine", "--instance", "other"), "'mine' and instance both set what the query is about"),
        (("fastest-plans", model, "-p", f"model={model}"), "leave one out"),
        (("RETURN $run AS run, $instance AS instance", "mine"), "takes each by its name: --instance and --run"),
        (("RETURN 1 AS one", "mine"), "no parameter that 'mine' could set"),
    ):
        refused = run("query", *arguments)
        assert refused.status == 2 and error in refused.err


def test_memory_makes_what_is_missing(run: Run, tiny: str) -> None:
    made = rows(run, "memory", "--model", tiny, *PLAN, "--show", "phases")
    assert made == rows(run, "memory", "--show", "phases")
    twice = rows(run, "memory", "--micro-batch-size", "2", "--show", "phases")
    saved = [next(row["forward_end"] for row in each if row["category"] == "activations") for each in (made, twice)]
    assert saved[0] < saved[1] <= 2 * saved[0]  # the loss itself is one number either way
    assert [kind for kind, _ in held(run)].count("instance") == 2


def test_no_rows_are_noted(run: Run) -> None:
    ran = run("ls")
    assert ran.status == 0
    assert "no rows" in ran.out
    assert rows(run, "ls") == []


@pytest.fixture(autouse=True)
def _no_warnings_on_standard_error(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    yield
    assert "Warning" not in capsys.readouterr().err


@pytest.fixture
def one_record(tmp_path: Path) -> Path:
    """A file with one recorded step of a tiny model under tp 2."""
    records = json.loads((Path(__file__).parents[1] / "validation" / "records.json").read_text(encoding="utf-8"))
    record = next(each for each in records if each["name"].startswith("tiny-llama") and each["config"]["tp"] == 2)
    file = tmp_path / "records.json"
    file.write_text(json.dumps([record]), encoding="utf-8")
    return file


def test_recorded_steps_are_checked(run: Run, one_record: Path) -> None:
    ran = run("validate", "--records", str(one_record), "-f", "json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert found
    assert all(row["theirs"] == row["ours"] for row in found if row["quantity"] != "peak bytes")
    assert 0.99 < float(next(row["ratio"] for row in found if row["quantity"] == "peak bytes")) < 1.01
    assert "peaks of memory" in ran.err
    assert any(row["quantity"].startswith("FLOPs") for row in found)
    assert "1 of 1 records agree" in ran.err


def test_published_steps_are_predicted(run: Run) -> None:
    ran = run("validate", "--reference", "--only", "megatron-22b*sp recompute core", "-f", "json")
    assert ran.status == 0, ran.err
    (row,) = json.loads(ran.out)
    assert row["quantity"].startswith("step of megatron-22b tp 8")
    assert (row["reference"], row["rows"]) == (1.1, "calibrated")
    assert abs(float(row["ratio"]) - 1) <= row["within"]
    assert "table 5, calibrated: 1, off by" in ran.err
    assert "all 1 steps: off by" in ran.err
    ran = run("validate", "--reference", "--only", "nothing")
    assert ran.status == 2
    assert "--only takes a pattern" in ran.err


def test_a_difference_from_a_record_is_a_failure(run: Run, one_record: Path) -> None:
    records = json.loads(one_record.read_text(encoding="utf-8"))
    records[0]["flops"]["forward"]["matmul"] += 2
    one_record.write_text(json.dumps(records), encoding="utf-8")
    ran = run("validate", "--records", str(one_record), "-f", "json")
    assert ran.status == 1
    found = [row for row in json.loads(ran.out) if row["quantity"] != "peak bytes"]
    (off,) = [row for row in found if row["theirs"] != row["ours"]]
    assert off["quantity"] == "FLOPs forward matmul"
    assert off["theirs"] - off["ours"] == 2


def test_validate_checks_one_thing(run: Run, one_record: Path, tmp_path: Path) -> None:
    for arguments, printed in (
        ((), "--records"),
        ((str(tmp_path), "--records", str(one_record)), "--records"),
        ((str(tmp_path), "--only", "tiny*"), "--only"),
        (("--records", str(one_record), "--only", "nothing*"), "--only"),
        (("--records", "missing.json"), "missing.json"),
        ((str(tmp_path / "missing"),), "missing"),
    ):
        ran = run("validate", *arguments)
        assert ran.status == 2, arguments
        assert printed in ran.err


def test_memory_is_printed_by_class_phase_and_tensor(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    printed = run("memory")
    assert printed.status == 0, printed.err
    assert "peak GB" in printed.out
    assert "forward_end" in printed.out
    assert "tensors at the peak, the largest first" in printed.out
    peaks = rows(run, "memory")
    assert [row["class"] for row in peaks] == [0, 1]
    assert all(row["peak"] == sum(row[word] for word in row if word in CATEGORIES) for row in peaks)
    phases = rows(run, "memory", "--show", "phases", "--class", "1")
    assert phases[-1]["category"] == "in all"
    assert phases[-1]["peak"] == peaks[1]["peak"]
    tensors = rows(run, "memory", "--show", "tensors", "--class", "1")
    assert sum(row["bytes"] for row in tensors) == peaks[1]["peak"]
    assert [row["bytes"] for row in tensors] == sorted((row["bytes"] for row in tensors), reverse=True)


CATEGORIES = {
    "parameters",
    "gradients",
    "optimizer_state",
    "master_weights",
    "inputs_and_buffers",
    "activations",
    "recomputed",
    "gathered_parameters",
    "communication_buffers",
    "temporaries",
}


def test_a_capacity_is_checked(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    peak = max(row["peak"] for row in rows(run, "memory"))
    fits = run("memory", "--capacity", f"{peak} B")
    assert (fits.status, "fits: the fullest rank leaves 0.00 GB" in fits.out) == (0, True)
    over = run("memory", "--capacity", f"{peak - 1}B")
    assert over.status == 1
    assert "does not fit" in over.out
    assert run("memory", "--capacity", "80gib").status == run("memory", "--capacity", "1.5 TB").status == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--capacity", "80"), "80GiB"),
        (("--class", "7"), "--class is one of 0, 1"),
        (("--show", "all", "-f", "csv"), "--show peaks, phases or tensors"),
        (("--show", "all", "-o", "memory.txt"), "--show peaks, phases or tensors"),
        (("nowhere",), "stagedb ls"),
    ],
)
def test_a_question_about_memory_that_makes_no_sense_is_refused(
    run: Run, tiny: str, arguments: tuple[str, ...], expected: str
) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    ran = run("memory", *arguments)
    assert ran.status == 2
    assert expected in ran.err


def test_a_step_is_shown_as_trace_chart_and_page(run: Run, tiny: str, tmp_path: Path) -> None:
    made = run("timeline", "--model", tiny, *PLAN)
    assert made.status == 0, made.err
    assert re.search(r"tiny-8\.pftrace: a step of tiny \(8 ranks\) takes [0-9.]+ us, \d+ slices, 2 messages", made.out)
    assert b"stagedb" in (tmp_path / "tiny-8.pftrace").read_bytes()[:200]
    part = run("timeline", "--only", "1", "--granularity", "task", "--out", "part.pftrace")
    assert "left out: 1 of 2 lanes" in part.err
    assert (tmp_path / "part.pftrace").stat().st_size < (tmp_path / "tiny-8.pftrace").stat().st_size
    chart = run("timeline", "--format", "text", "--width", "80", "--system", "a100-80gb")
    assert [line.split(" ")[:2] for line in chart.out.splitlines()[1:3]] == [["stage", "0"], ["stage", "1"]]
    assert "\033" not in chart.out
    assert max(map(len, chart.out.splitlines())) <= 80
    printed = run("report")
    assert printed.status == 0, printed.err
    assert "tiny-8.html: a step of tiny (8 ranks) takes" in printed.out
    assert "<h1>tiny on h100</h1>" in (tmp_path / "tiny-8.html").read_text(encoding="utf-8")


def test_views_keep_the_profile_that_they_run(run: Run, tiny: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0

    def kept() -> list[str]:
        return [row["id"] for row in json.loads(run("ls", "profiles", "-f", "json").out)]

    made = run("timeline", "--system", "a100-80gb")
    (first,) = kept()
    assert f"the store keeps profile {first[:12]} of tiny on a100-80gb" in made.err
    chart = run("timeline", "--format", "text")
    assert f"the store keeps profile {kept()[0][:12]} of tiny on h100" in chart.err
    page = run("report")
    assert len(kept()) == 2
    assert f"in the store: profile {kept()[0][:12]} of tiny on h100" in page.err
    assert run("query", "critical-path").status == 0
    assert "profile" not in run("report", "--force", "--quiet").err
    # A request that is refused keeps nothing.
    assert run("timeline", "--only", "7", "--system", "b200", "--out", "x.pftrace").status == 2
    assert run("timeline", "--format", "text", "--width", "9", "--system", "b200").status == 2
    assert run("report", "--out", "missing/page.html", "--system", "b200").status == 2
    assert len(kept()) == 2


def test_a_report_compares_two_steps(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("profile", "--model", tiny, *PLAN, "--name", "mine").status == 0
    assert run("profile", "--system", "a100-80gb", "--name", f"{current_user()}/../other").status == 0
    made = run("report", "mine", "../other")
    assert made.status == 0, made.err
    assert "mine-and-other.html: mine is " in made.out
    assert " ../other: " in made.out
    text = (tmp_path / "mine-and-other.html").read_text(encoding="utf-8")
    assert "<h1>mine and ../other</h1>" in text
    printed = run("diff", "mine", "../other")
    verdict = printed.out.splitlines()[0]
    assert verdict.startswith("mine is ")
    exact = json.loads(run("diff", "mine", "../other", "-f", "json").out)["rows"][0]
    assert (exact["what"], exact["unit"]) == ("step", "ns")
    (row,) = re.findall(r"^step +ms +([0-9.]+) +([0-9.]+) ", printed.out, re.MULTILINE)
    assert [float(each) for each in row] == pytest.approx([exact["first"] / 1e6, exact["second"] / 1e6], rel=1e-5)
    assert verdict.removesuffix(".") in made.out
    # Instances are timed on the system of the options, and these profiles are kept.
    mixed = run("report", "tiny", "mine", "--system", "b200", "-o", "two.html")
    assert mixed.status == 0, mixed.err
    assert re.search(r"the store keeps profile [0-9a-f]{12} of tiny on b200", mixed.err)
    assert len(json.loads(run("ls", "profiles", "-f", "json").out)) == 3
    for words, expected in (
        (("mine", "../other", "--system", "h100"), "leave out --system"),
        (("mine", "tiny", "--tp", "1"), "leave out --model, --profile and the options of a plan"),
        (("mine", "tiny", "--profile", "mine"), "leave out --model, --profile"),
        (("mine", "nothing"), "no graph, instance, profile, search or run 'nothing'"),
        (("mine", json.loads(run("ls", "graphs", "-f", "json").out)[0]["id"]), "is a graph"),
        (("mine", "../other"), "--force"),
    ):
        refused = run("report", *words)
        assert refused.status == 2, refused.out
        assert expected in refused.err


def test_a_step_that_got_longer_fails_with_status_1(run: Run, tiny: str) -> None:
    assert run("profile", "--model", tiny, *PLAN, "--name", "before").status == 0
    assert run("profile", "--scale", "collective:tp=4", "--name", "after").status == 0
    failed = run("diff", "before", "after", "--fail-above", "0.01%")
    assert failed.status == 1
    assert re.search(
        r"Error: the second step is \d+\.\d\d% longer than the first, by more than 0\.01%: "
        r"exposed communication over tp takes \d+ us more on a rank",
        failed.err,
    )
    # The comparison is printed all the same.
    assert failed.out == run("diff", "before", "after").out
    for words in (("before", "after", "--fail-above", "1000%"), ("after", "before", "--fail-above", "0%")):
        passed = run("diff", *words)
        assert (passed.status, passed.err) == (0, "")
    found = json.loads(run("diff", "before", "after", "--fail-above", "0%", "-f", "json").out)
    assert found["rows"][0]["what"] == "step"
    assert found["provenance"]["commands"][-1].startswith("stagedb diff ")
    for share in ("3", "-3%", "x", ""):
        refused = run("diff", "before", "after", "--fail-above", share)
        assert refused.status == 2 and "--fail-above" in refused.err and refused.out == ""
    # An instance has the times of its newest profile that is not scaled.
    assert run("diff", "tiny", "tiny", "--fail-above", "0%").status == 0


def test_up_to_eight_are_compared(run: Run, tiny: str) -> None:
    for name, system in (("one", "h100"), ("two", "a100-80gb"), ("three", "h200")):
        assert run("profile", "--model", tiny, *PLAN, "--system", system, "--name", name).status == 0
    found = run("diff", "one", "two", "three")
    assert found.status == 0, found.err
    first, *others = found.out.partition("\n\n")[0].splitlines()
    assert re.match(r"(one|three) is the fastest of 3: .* differs the most, from .* a rank in \w+ to .*\.$", first)
    assert len(others) == 2
    assert all(run("diff", *re.findall(r"\b(?:one|two|three)\b", each)[:2]).out.startswith(each) for each in others)
    assert "\nsystem  h100  a100-80gb  h200" in found.out and "work and messages" not in found.out
    terms = json.loads(run("diff", "one", "two", "three", "--show", "time", "-f", "json").out)["rows"]
    assert terms[0]["term"] == "step"
    for name in ("one", "two", "three"):
        assert sum(row[name] for row in terms[1:]) == pytest.approx(terms[0][name], abs=len(terms))
    for words, expected in (
        (("one", "two", "three", "--fail-above", "3%"), "--fail-above compares two steps, and 3 are named"),
        (["one"] * 9, "takes 2 to 8 instances or profiles, and 9 are given"),
        (("one", "two", "nothing"), "no graph, instance, profile, search or run 'nothing'"),
    ):
        refused = run("diff", *words)
        assert refused.status == 2 and expected in refused.err


def test_a_view_replaces_nothing_but_its_like(run: Run, tiny: str, tmp_path: Path) -> None:
    assert run("report", "--model", tiny, *PLAN).status == 0
    first = (tmp_path / "tiny-8.html").read_bytes()
    assert "--force" in run("report").err
    assert run("report", "--force").status == 0
    assert (tmp_path / "tiny-8.html").read_bytes() == first
    (tmp_path / "mine.html").write_text("<!doctype html><p>mine", encoding="utf-8")
    for arguments in (
        ("report", "--out", "mine.html"),
        ("timeline", "--out", "tiny-8.html"),
        ("report", "--out", "."),
        ("report", "--out", "missing/report.html"),
    ):
        ran = run(*arguments, "--force")
        assert ran.status == 2, ran.out
        assert "--out" in ran.err
    assert (tmp_path / "mine.html").read_text(encoding="utf-8") == "<!doctype html><p>mine"
    assert not list(tmp_path.glob(".*partial"))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--only", "x"), "--only"),
        (("--only", "3-1"), "--only"),
        (("--only", "2"), "stages from 0 to 1"),
        (("--width", "80"), "--format text"),
        (("--format", "text", "--out", "file"), "--out"),
        (("--format", "text", "--width", "20"), "--width"),
        (("--system", "abacus"), "abacus"),
    ],
)
def test_a_timeline_names_what_it_cannot_do(run: Run, tiny: str, arguments: tuple[str, ...], expected: str) -> None:
    assert run("instantiate", tiny, *PLAN).status == 0
    ran = run("timeline", *arguments)
    assert ran.status == 2
    assert expected in ran.err


COMMANDS_WITH_PLANS: tuple[tuple[str, ...], ...] = (
    ("export", "--out", "traces", "--model"),
    ("instantiate",),
    ("memory", "--model"),
    ("profile", "--model"),
    ("report", "--model"),
    ("timeline", "--model"),
    ("timeline", "--format", "text", "--model"),
)


@pytest.mark.parametrize("command", COMMANDS_WITH_PLANS, ids=" ".join)
def test_a_command_names_the_sequence_length_that_the_user_did_not(
    run: Run, tiny: str, command: tuple[str, ...]
) -> None:
    trained = Path(tiny).with_name("trained.yaml")
    trained.write_text(Path(tiny).read_text() + "train_seq_len: 16\ntrain_seq_len_source: a paper\n")
    ran = run(*command, str(trained), "--tp", "2")
    note = "sequences of 16 tokens (a paper); --seq-len sets another length\n"
    assert (ran.status, note in ran.err, "sequences of" in ran.out) == (0, True, False), ran
    named = run(
        *command, str(trained), "--tp", "4", "--seq-len", "16", *(("--force",) if command[0] == "export" else ())
    )
    assert "sequences of" not in named.err + named.out


def test_the_note_on_the_sequence_length_is_quiet_and_about_what_is_made(run: Run, tiny: str) -> None:
    note = "sequences of 32 tokens (max_positions of its card); --seq-len sets another length\n"
    assert note in run("instantiate", tiny, "--tp", "2").err
    assert run("instantiate", tiny, "--tp", "2", "-q").err == ""
    assert "sequences of" not in run("memory").err
    assert "sequences of" not in run("memory", "--tp", "4").err


def test_sequences_above_a_left_out_window_are_refused_with_a_way_out(run: Run) -> None:
    refused = run("instantiate", "mistral-7b", "--seq-len", "32768")
    assert refused.status == 2
    assert "--seq-len takes at most 4096" in refused.err and "mistral-7b-window" in refused.err
    assert run("ls", "-f", "csv").out.splitlines()[1:] == []


def test_rings_with_a_window_are_refused_with_a_way_out(run: Run, tiny: str) -> None:
    windowed = Path(tiny).with_name("windowed.yaml")
    windowed.write_text(Path(tiny).read_text() + "layer_kinds: {layer: {mixer: sliding_window, window: 8}}\n")
    refused = run("instantiate", str(windowed), "--cp", "2")
    assert refused.status == 2
    assert "sliding-window attention" in refused.err and "take --cp-kind ulysses" in refused.err
    assert run("ls", "-f", "csv").out.splitlines()[1:] == []
    assert run("instantiate", str(windowed), "--cp", "2", "--cp-kind", "ulysses").status == 0


def test_an_export_notes_what_the_simulator_does_in_another_way_than_the_profile(run: Run, tiny: str) -> None:
    words = ("--model", tiny, "--tp", "2", "--dp", "2", "--durations-in-traces")
    assert run("export", *words, "--out", "set").err.count("collectives of different axes in parallel") == 1
    assert "in parallel" not in run("export", *words, "--packed", "--out", "set.packed").err
    assert "collectives of different axes in parallel" in run("unpack", "set.packed", "--out", "unpacked").err
    assert "in parallel" not in run("export", *words[:-1], "--out", "untimed").err
    assert Path("set/manifest.json").read_text() == Path("unpacked/manifest.json").read_text()
