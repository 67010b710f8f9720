"""The files for Docker: what can be checked without Docker.

The compose files follow their schema, and a server that runs without Docker takes the same settings, answers the same
health check, before and after a new password, and lets nobody in without TLS where docker/tls.yaml wants that.
"""

import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import neo4j
import pytest
import yaml

from scripts._neo4j import SHARED, settings_of
from stagedb.errors import UsageError
from stagedb.store import open_store

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
FILES = sorted(DOCKER.glob("*.yaml"))
TLS = DOCKER / "neo4j-tls.env"
SCHEMA = json.loads((Path(__file__).parent / "compose-spec.json").read_text(encoding="utf-8"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def substituted(value: Any) -> Any:
    """A document with the defaults of its variables."""
    if isinstance(value, dict):
        return {name: substituted(each) for name, each in value.items()}
    if isinstance(value, list):
        return [substituted(each) for each in value]
    return re.sub(r"\$\{[A-Z0-9_]+:-([^}]*)\}", r"\1", value) if isinstance(value, str) else value


def problems(document: Any) -> list[str]:
    found = jsonschema.Draft7Validator(SCHEMA).iter_errors(document)
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in found]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_compose_file_follows_its_schema(path: Path) -> None:
    document = read(path)
    assert problems(document) == []
    assert problems(substituted(document)) == []
    assert "${" not in json.dumps(substituted(document))


def test_what_breaks_the_schema_is_found() -> None:
    document = read(DOCKER / "compose.yaml")
    document["services"]["neo4j"]["restarts"] = "always"
    assert len(problems(document)) == 1


def test_the_server_is_closed_and_limited() -> None:
    service = substituted(read(DOCKER / "compose.yaml"))["services"]["neo4j"]
    assert re.fullmatch(r"neo4j:\d+\.\d+\.\d+-community", service["image"])
    assert service["ports"] == ["127.0.0.1:7687:7687"]
    heap, cache = (
        service["environment"][f"NEO4J_server_memory_{name}"] for name in ("heap_max__size", "pagecache_size")
    )
    assert int(service["mem_limit"].removesuffix("g")) > int(heap.removesuffix("g")) + int(cache.removesuffix("g"))
    assert service["stop_grace_period"] == "2m"


def test_no_password_is_in_a_compose_file_or_a_variable() -> None:
    for path in FILES:
        for service in read(path)["services"].values():
            assert not {"NEO4J_AUTH", "NEO4J_PASSWORD"} & set(service.get("environment", {}))
    document = read(DOCKER / "compose.yaml")
    assert document["services"]["neo4j"]["environment"]["NEO4J_AUTH_PATH"] == "/run/secrets/neo4j_auth"
    assert document["services"]["neo4j"]["secrets"] == ["neo4j_auth"]
    assert [*document["secrets"]] == ["neo4j_auth", "serve_token"]


def test_files_that_a_compose_file_names_are_there() -> None:
    for path in FILES:
        for service in read(path)["services"].values():
            if "env_file" in service:
                assert (DOCKER / service["env_file"]).is_file()


def test_a_variable_means_the_setting_that_the_image_makes_of_it() -> None:
    """The image makes a dot of each underscore, then an underscore of two dots."""
    for path in (SHARED, TLS):
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("NEO4J_")]
        names = [line.partition("=")[0].removeprefix("NEO4J_").replace("_", ".").replace("..", "_") for line in lines]
        assert names == [*settings_of(path)]


def test_a_password_is_made_once_and_its_directory_is_closed(tmp_path: Path) -> None:
    file, token = (tmp_path / "secrets" / name for name in ("neo4j_auth", "serve_token"))
    command = [str(DOCKER / "new_password"), str(file)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == f"wrote {file}\nwrote {token}\n"
    account = file.read_text(encoding="utf-8")
    assert re.fullmatch(r"[0-9a-f]{36}", token.read_text(encoding="utf-8"))
    assert token.read_text(encoding="utf-8") not in account
    assert re.fullmatch(r"neo4j/[0-9a-f]{36}", account)
    # The image's user reads the file; on the machine, the directory keeps others out.
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert subprocess.run(command, check=False, capture_output=True).returncode == 1
    assert file.read_text(encoding="utf-8") == account


def test_a_token_stays_when_an_account_is_made(tmp_path: Path) -> None:
    token = tmp_path / "serve_token"
    token.write_text("the-token-of-a-team", encoding="utf-8")
    subprocess.run([str(DOCKER / "new_password"), str(tmp_path / "neo4j_auth")], check=True, capture_output=True)
    assert token.read_text(encoding="utf-8") == "the-token-of-a-team"


def health_check(path: Path, port: str) -> bool:
    """Whether the health check of a compose file passes on a port of this machine."""
    test = read(path)["services"]["neo4j"]["healthcheck"]["test"]
    line = [word.replace(":7687/", f":{port}/") for word in shlex.split(test)]
    return subprocess.run(line, check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CA, and a certificate for this machine that it signed."""
    path = tmp_path_factory.mktemp("certificates")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=path, check=True, capture_output=True)

    usage = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", "ca.key", "-out", "ca.crt",
            "-subj", "/CN=team", *usage)  # fmt: skip
    openssl(
        "req", "-newkey", "rsa:2048", "-nodes", "-keyout", "private.key", "-out", "request", "-subj", "/CN=localhost"
    )
    (path / "names").write_text("subjectAltName=DNS:localhost\nauthorityKeyIdentifier=keyid\n", encoding="utf-8")
    openssl("x509", "-req", "-in", "request", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", "public.crt")  # fmt: skip
    return path


@pytest.fixture(scope="module")
def secure(
    neo4j_environment: dict[str, str], certificates: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """The directory of a server with the settings of all files for Docker."""
    home = tmp_path_factory.mktemp("server") / "home"
    (home / "home" / "certificates").mkdir(parents=True)
    for name in ("private.key", "public.crt"):
        shutil.copy(certificates / name, home / "home" / "certificates")
    line = [sys.executable, "-m", "scripts._neo4j", "--home", str(home)]
    settings = [f"--setting={name}={value}" for name, value in settings_of(TLS).items()]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NEO4J_")}
    subprocess.run([*line, "start", *settings], cwd=ROOT, env=environment, check=True, capture_output=True)
    yield home
    subprocess.run([*line, "stop"], cwd=ROOT, check=True, capture_output=True)


def test_a_server_with_these_settings_is_healthy_and_wants_tls(secure: Path, certificates: Path) -> None:
    port = str(json.loads((secure / "state.json").read_text(encoding="utf-8"))["port"])
    password = (secure / "password").read_text(encoding="utf-8")
    account = {"NEO4J_USERNAME": "neo4j", "NEO4J_PASSWORD": password, "STAGEDB_CONFIG": os.devnull}
    with neo4j.GraphDatabase.driver(f"bolt+ssc://localhost:{port}", auth=("neo4j", password)) as driver:
        found = {row["name"]: row["value"] for row in driver.execute_query("SHOW SETTINGS").records}
        for path in (SHARED, TLS):
            assert differences(found, settings_of(path)) == {}
        assert health_check(DOCKER / "tls.yaml", port)
        assert not health_check(DOCKER / "compose.yaml", port)
        driver.execute_query(
            "ALTER CURRENT USER SET PASSWORD FROM $old TO $new", old=password, new="another-one-of-ours"
        )
        assert health_check(DOCKER / "tls.yaml", port)
    for scheme in ("bolt+s", "neo4j+s"):
        done = listed(f"{scheme}://localhost:{port}", {**account, "SSL_CERT_FILE": str(certificates / "ca.crt")})
        assert "refused the account" in done.stderr
        trusted = {**account, "NEO4J_PASSWORD": "another-one-of-ours", "SSL_CERT_FILE": str(certificates / "ca.crt")}
        assert listed(f"{scheme}://localhost:{port}", trusted).returncode == 0
    with pytest.raises(UsageError, match=r"does not trust the certificate.*SSL_CERT_FILE"):
        open_store(f"bolt+s://localhost:{port}", environment=account)
    with pytest.raises(UsageError, match="no store answers"):
        open_store(f"bolt://localhost:{port}", environment=account)


def listed(uri: str, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "stagedb", "ls", "--store", uri]
    return subprocess.run(
        line, cwd=ROOT, env={**os.environ, **environment}, check=False, capture_output=True, text=True
    )


def differences(found: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, tuple[str | None, str]]:
    """Settings that a server has otherwise."""
    return {name: (found.get(name), value) for name, value in wanted.items() if not same(found.get(name), value)}


def same(found: str | None, wanted: str) -> bool:
    return found is not None and (found == wanted or parsed(found) == parsed(wanted) or found.endswith("/" + wanted))


def parsed(value: str) -> object:
    """A duration in seconds, a size in bytes, a list in order; else the text."""
    if duration := re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", value):
        return int(duration[1] or 0) * 60 + int(duration[2] or 0)
    if size := re.fullmatch(r"(\d+(?:\.\d+)?)(GiB|g)", value):
        return int(float(size[1]) * (1 << 30))
    return value
