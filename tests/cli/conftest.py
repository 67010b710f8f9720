"""The command line, called as a user calls it, on an empty store of either engine."""

import functools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main

from stagedb.cli import application, main

TINY = """\
name: tiny
family: llama
layers: 4
hidden: 64
heads: 4
kv_heads: 2
head_dim: 16
ffn: 96
vocab: 256
vocab_multiple: 1
norm: rmsnorm
mlp: gated
activation: silu
positions: rotary
max_positions: 32
tied: false
linear_bias: false
qkv_bias: false
parameters: 0
source: a model for tests
"""


class Ran(NamedTuple):
    """What a command did: exit status, standard output, standard error."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(scope="session", autouse=True)
def one_tree() -> Iterator[None]:
    """The tree of commands is made once: it takes longer than most commands, and is the same for each."""
    with pytest.MonkeyPatch.context() as patch:
        whole = functools.cache(application.application)
        patch.setattr(application, "application", lambda modules=(): whole())
        patch.setattr(typer.main, "get_command", functools.cache(typer.main.get_command))
        yield


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Call a command in an empty directory, with no store to be found."""
    for name in ("NEO4J_URI", "NEO4J_USERNAME", "NEO4J_PASSWORD", "NEO4J_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("STAGEDB_HOME", "/dev/null/nowhere")
    monkeypatch.setenv("STAGEDB_CONFIG", str(tmp_path / "no-config.toml"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["stagedb", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        status = ended.value.code
        return Ran(status if isinstance(status, int) else 0, printed.out, printed.err)

    return run


@pytest.fixture
def run(offline: Run, monkeypatch: pytest.MonkeyPatch, store_environment: dict[str, str]) -> Run:
    """Call a command on an empty store, each engine in turn."""
    for name, value in store_environment.items():
        monkeypatch.setenv(name, value)
    return offline


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """Path of a card of a model with four layers."""
    file = tmp_path / "tiny.yaml"
    file.write_text(TINY, encoding="utf-8")
    return str(file)
