"""The image of the pages: what can be checked without building it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.docker.test_compose import DOCKER, read, substituted

DOCKERFILE = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
LINES = [line for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]

STUB = """#!/bin/sh
echo "$@"
echo "$NEO4J_USERNAME $NEO4J_PASSWORD"
"""


def started(tmp_path: Path, secrets: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    """The entry point, with a `stagedb` that prints its arguments and the account."""
    program, kept = tmp_path / "bin" / "stagedb", tmp_path / "secrets"
    program.parent.mkdir()
    kept.mkdir()
    program.write_text(STUB, encoding="utf-8")
    program.chmod(0o755)
    for name, text in secrets.items():
        (kept / name).write_text(text, encoding="utf-8")
    environment = {"PATH": f"{program.parent}:{os.environ['PATH']}", "STAGEDB_SECRETS": str(kept), **variables}
    line = [str(DOCKER / "serve"), "--rows", "5"]
    return subprocess.run(line, env=environment, check=False, capture_output=True, text=True)


def test_the_account_and_the_tokens_come_from_files(tmp_path: Path) -> None:
    secrets = {"neo4j_auth": "ann/a/b", "serve_token": "r", "writer_token": "w"}
    done = started(tmp_path, secrets, NEO4J_URI="bolt://neo4j", STAGEDB_SERVE_HOSTS="one.test two.test")
    kept = tmp_path / "secrets"
    assert done.stderr == ""
    arguments, account = done.stdout.splitlines()
    assert arguments == (
        "serve --host 0.0.0.0 --port 8765 --allow-host two.test --allow-host one.test "
        f"--writer-token-file {kept}/writer_token --token-file {kept}/serve_token --rows 5"
    )
    assert account == "ann a/b"


def test_variables_come_before_files(tmp_path: Path) -> None:
    given = {"NEO4J_URI": "bolt://neo4j", "NEO4J_USERNAME": "eve", "NEO4J_PASSWORD": "p", "STAGEDB_SERVE_TOKEN": "t"}
    done = started(tmp_path, {"neo4j_auth": "ann/x", "serve_token": "r"}, **given)
    assert done.stdout.splitlines() == ["serve --host 0.0.0.0 --port 8765 --rows 5", "eve p"]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [({}, "no store: set NEO4J_URI"), ({"NEO4J_URI": "bolt://neo4j"}, "no token for readers")],
)
def test_what_is_missing_is_named(tmp_path: Path, variables: dict[str, str], reason: str) -> None:
    done = started(tmp_path, {}, **variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert reason in done.stderr


def test_it_is_not_root_and_has_a_health_check() -> None:
    last = LINES[max(index for index, line in enumerate(LINES) if line.startswith("FROM")) :]
    assert re.fullmatch(r"USER [1-9]\d+:[1-9]\d+", next(line for line in last if line.startswith("USER")))
    assert "/health" in DOCKERFILE.partition("HEALTHCHECK")[2]
    assert "--frozen" in DOCKERFILE, "the packages are those of uv.lock"


def test_the_service_is_closed_and_limited() -> None:
    service = substituted(read(DOCKER / "compose.yaml"))["services"]["serve"]
    assert service["ports"] == ["127.0.0.1:8765:8765"]
    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]  # noqa: S108 - in the container
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["secrets"] == ["neo4j_auth", "serve_token"]
    assert not {"NEO4J_PASSWORD", "STAGEDB_SERVE_TOKEN"} & set(service["environment"])
    assert service["profiles"] == ["pages"], "the store alone needs no checkout"


def test_the_pages_have_the_certificate_of_the_server() -> None:
    service = substituted(read(DOCKER / "tls.yaml"))["services"]["serve"]
    assert service["volumes"] == ["./certificates:/ssl:ro"]
    assert service["command"] == "--certificate /ssl/public.crt --key /ssl/private.key"
    assert "https://127.0.0.1:8765/health" in service["healthcheck"]["test"]
