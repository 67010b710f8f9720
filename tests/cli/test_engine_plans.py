"""A file with the arguments of a serving engine, named with --plan: the step that its options would give."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run

DECODE = ("--model", "llama3-8b", "--workflow", "decode", "--cache-len", "1023", "--no-keep")


def step(out: str) -> list[str]:
    """What a profile prints, without its first line, which ends in the time that it took."""
    return out.splitlines()[1:]


def test_a_profile_of_arguments_is_that_of_the_options(run: Run, tmp_path: Path) -> None:
    (tmp_path / "args.txt").write_text("vllm serve M --tensor-parallel-size 4 \\\n --max-num-seqs 32 --port 80\n")
    found = run("profile", "--plan", "vllm:args.txt", *DECODE)
    options = run("profile", "--tp", "4", "--micro-batch-size", "32", *DECODE)
    assert (found.status, options.status) == (0, 0), found.err
    assert step(found.out) == step(options.out)
    assert "args.txt: without effect on a step: --port" in found.err
    assert "its model, 'M', is not read: --model names the one of the step" in found.err
    quiet = run("profile", "-q", "--plan", "vllm:args.txt", *DECODE)
    assert "without effect" not in quiet.err


def test_options_win(run: Run, tmp_path: Path) -> None:
    (tmp_path / "args.txt").write_text("--tensor-parallel-size 4 --max-num-seqs 32")
    found = run("profile", "--plan", "vllm:args.txt", "--tp", "2", *DECODE)
    assert step(found.out) == step(run("profile", "--tp", "2", "--micro-batch-size", "32", *DECODE).out)


def test_a_file_of_an_engine_needs_a_model(run: Run, tmp_path: Path) -> None:
    (tmp_path / "args.txt").write_text("vllm serve Qwen/Qwen3-32B -tp 4")
    run("instantiate", "llama3-8b")
    found = run("profile", "--plan", "vllm:args.txt", "--workflow", "decode", "--cache-len", "99", "--no-keep")
    assert found.status == 2
    assert "has a step of 'Qwen/Qwen3-32B', and no model of the library is named: add --model qwen3-32b" in found.err


@pytest.mark.parametrize(
    ("text", "arguments", "expected"),
    [
        (
            "--tensor-parallel-size 3",
            DECODE,
            "tp 3 does not divide the 32 attention heads: the nearest for this model is --tp 2",
        ),
        ("--spec-tokens 3", DECODE, "args.txt: --spec-tokens 3: speculative decoding gives each request several"),
        (
            "-tp 2",
            ("--model", "llama3-8b", "--no-keep"),
            "choose its step with --workflow prefill, mixed, decode or speculative",
        ),
        (
            "-dp 2",
            (*DECODE[2:], "--model", "mixtral-8x7b"),
            "what works: --enable-expert-parallel, or --dp 2 on the command line, for a model without experts",
        ),
    ],
)
def test_refusals(run: Run, tmp_path: Path, text: str, arguments: tuple[str, ...], expected: str) -> None:
    (tmp_path / "args.txt").write_text(text)
    found = run("profile", "--plan", "vllm:args.txt", *arguments)
    assert found.status == 2
    assert expected in found.err
