"""Command lines that are refused: one line that names what is wrong, what is allowed, and the nearest."""

import json
import os
from pathlib import Path

import pytest

from tests.cli.conftest import Run

LONG = "n" * 5000
NO_PATHS = {"a long name": LONG, "NUL": "a\0b", "half of a surrogate pair": "\ud800", "many folders": "d/" * 2500}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("ls", "--format", "jsn"),
            "unknown format 'jsn' (did you mean json or ndjson?): --format is table, csv, json, ndjson or parquet",
        ),
        (
            ("export", "--granularity", "ops"),
            "unknown granularity 'ops' (did you mean op?): --granularity is op",
        ),
        (
            ("ls", "graph"),
            "unknown kind 'graph' (did you mean graphs?): KIND is graphs, instances, profiles, searches, runs or "
            "unfinished",
        ),
        (("exprot",), "unknown command 'exprot' (did you mean export"),
        (("export", "--shrad", "0/2"), "unknown option '--shrad' (did you mean --shard or --reshard?)"),
        (("export", "--tp", "two"), "--tp must be a whole number"),
        (("query", "RETURN 1 AS x", "--timeout", "long"), "--timeout must be a number"),
        (("unpack",), "Missing argument 'FILE': `stagedb unpack --help`"),
        (("export", "--shard"), "Option '--shard' requires an argument"),
        (("ls", "--format", LONG), "unknown format 'nnnn"),
        ((LONG,), "unknown command 'nnnn"),
    ],
)
def test_a_bad_argument_is_refused_in_one_line(offline: Run, arguments: tuple[str, ...], words: str) -> None:
    refused = offline(*arguments)
    assert refused.status == 2
    assert refused.out == ""
    assert refused.err.startswith(f"Error: {words}")
    assert refused.err.count("\n") == 1
    assert "Value error" not in refused.err
    assert len(refused.err) < 400


@pytest.mark.parametrize("case", NO_PATHS)
@pytest.mark.parametrize(
    "arguments",
    [
        *(("models", "{}"), ("systems", "{}"), ("validate", "{}"), ("validate", "--records", "{}"), ("unpack", "{}")),
        *(("models", "-f", "csv", "-o", "{}"), ("queries", "-f", "parquet", "-o", "{}"), ("export", "--plan", "{}")),
        ("unpack", "some.packed", "-o", "{}"),
    ],
)
def test_a_text_that_no_path_can_be_is_refused(
    offline: Run, tmp_path: Path, arguments: tuple[str, ...], case: str
) -> None:
    assert_refused(offline, arguments, NO_PATHS[case])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", NO_PATHS)
def test_options_with_a_store_refuse_such_texts_too(run: Run, tiny: str, case: str) -> None:
    word = NO_PATHS[case]
    commands = (
        *(("profile", "--model", tiny, "--durations", word), ("profile", "--model", tiny, "--system", word)),
        *(("export", "--model", tiny, "--out", word), ("export", "--model", tiny, "--packed", "--out", word)),
        *(("report", "--model", tiny, "--out", word), ("timeline", "--model", tiny, "--out", word)),
        *(("export", "--model", tiny, "--strategy", word), ("ls", "-f", "csv", "-o", word)),
    )
    for arguments in commands:
        assert_refused(run, arguments, word)
    assert run("ls").out.count("\n") <= 2


def assert_refused(run: Run, arguments: tuple[str, ...], word: str) -> None:
    refused = run(*(each.replace("{}", word) for each in arguments))
    assert refused.status == 2, refused
    assert refused.err.startswith("Error: ")
    assert refused.err[:-1].isprintable()
    assert len(refused.err) < 700


def test_only_a_regular_file_is_unpacked(offline: Run, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused = offline("unpack", "pipe", "-o", "out")
    assert (refused.status, refused.err) == (2, "Error: cannot read pipe: it is a pipe, and only a file is read\n")


def test_a_query_with_an_impossible_time_or_text_is_refused(run: Run) -> None:
    for seconds in ("inf", "1e300", "nan", "0"):
        refused = run("query", "RETURN 1 AS x", "--timeout", seconds)
        assert (refused.status, refused.out) == (2, "")
        assert "a number of seconds above 0, at most 604,800" in refused.err
    assert "the parameter 'p' is not Unicode text" in run("query", "RETURN $p AS p", "-p", "p=\udc80").err


def test_a_path_with_a_long_name_is_printed_short(run: Run, tmp_path: Path) -> None:
    refused = run("export", "--model", "llama3-8b", "-o", "n" * 5000)
    assert refused.status in (1, 2)
    assert len(refused.err) < 700


def test_a_name_that_is_not_unicode_is_refused(run: Run) -> None:
    """Bytes of a command line that are not UTF-8 arrive as halves of surrogate pairs."""
    for command in (("show",), ("report",), ("memory",), ("rm",), ("export", "-o", "out")):
        refused = run(*command, "\udc80\u0663")
        assert (refused.status, refused.out) == (2, ""), refused
        assert "not Unicode" in refused.err


def test_a_profile_is_not_an_instance(run: Run, tiny: str) -> None:
    assert run("profile", "--model", tiny, "--name", "timed", "-f", "csv").status == 0
    (profile,) = json.loads(run("ls", "profiles", "-f", "json").out)
    (instance,) = json.loads(run("ls", "instances", "-f", "json").out)
    for word in (profile["id"], profile["id"][:12], "timed"):
        refused = run("memory", word)
        assert refused.status == 2
        assert f"{word!r} is a profile, of instance {instance['id'][:12]} (tiny)" in refused.err
        ways = [f"`stagedb {verb} {instance['id'][:12]}`" for verb in ("memory", "export")]
        assert all(way in refused.err for way in ways), refused.err
    assert run("memory", instance["id"][:12]).status == 0
    graph = json.loads(run("ls", "graphs", "-f", "json").out)[0]["id"]
    assert f"{graph!r} is a graph, of the model tiny: make an instance of it" in run("memory", graph).err


ONE_WIDE = """\
name: one
family: llama
layers: 1
hidden: 1
heads: 1
kv_heads: 1
head_dim: 1
ffn: 1
vocab: 1
vocab_multiple: 1
norm: rmsnorm
mlp: gated
activation: silu
positions: learned
max_positions: 8
tied: false
linear_bias: false
qkv_bias: false
parameters: 0
source: a model with one of everything
"""


def test_small_parts_of_parameters_have_a_way_out_that_helps(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(ONE_WIDE)
    refused = run("export", "--model", "one.yaml", "--dp", "8", "--zero", "1", "-o", "out")
    assert refused.status == 1
    assert "gathers 192 bytes a rank over dp" in refused.err
    assert "take a lower --dp, --zero 0, or a larger model" in refused.err
    assert "sequences" not in refused.err
    assert run("export", "--model", "one.yaml", "--dp", "8", "--zero", "0", "-o", "out").status == 0
