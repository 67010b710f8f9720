"""How agents reach the tools: a process over its standard streams, and HTTP with a token."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
import uvicorn
from mcp import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from stagedb.agents import AnswerLimits
from stagedb.agents.transports import MOST_REQUEST, tools_application
from stagedb.api import Stagedb
from stagedb.serve.access import AccessRules, names_of
from stagedb.serve.listening import bound
from stagedb.serve.shared_store import SharedStore
from stagedb.store import Store
from tests.agents.asking import reply_of
from tests.cli.conftest import Run, offline, run  # noqa: F401  # fixtures
from tests.ir.tiny import card
from tests.serve.served import Answer, KeptOpen, Served

TOKEN = "a-token-for-the-tests"

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "ls", "arguments": {}}}
JSON = {"content_type": "application/json", "accept": "application/json, text/event-stream"}


@contextlib.contextmanager
def listening(store: Store, token: str | None) -> Iterator[Served]:
    """The tools of a store over HTTP."""
    rules = AccessRules(token, names_of("127.0.0.1", ()))
    app = tools_application(SharedStore(lambda: KeptOpen(store)), rules, AnswerLimits())
    opened = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
    thread.start()
    end = time.monotonic() + 300
    while not server.started:
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.02)
    try:
        yield Served(f"http://127.0.0.1:{opened.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join(timeout=300)
        opened.close()


def post(served: Served, path: str = "/mcp", method: str = "POST", body: Any = CALL, **headers: str) -> Answer:
    return served.get(path, method, json.dumps(body), **{**JSON, **headers})


def ls_over_http(served: Served, token: str | None, mode: str = "auto") -> list[dict[str, Any]]:
    """The content of the store, asked with the client of the protocol's package."""

    async def ask() -> list[dict[str, Any]]:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=300) as http_client,
            Client(streamable_http_client(f"{served.address}/mcp", http_client=http_client), mode=mode) as client,
        ):
            assert client.server_info is not None and client.server_info.name == "stagedb"
            return reply_of(await client.call_tool("ls", {"kind": "instances"})).rows

    return anyio.run(ask)


def test_the_token_is_needed_over_http(store: Store) -> None:
    Stagedb(store).instantiate(card("llama"), name="wide", tp=2)
    with listening(store, TOKEN) as served:
        for mode in ("auto", "legacy"):  # agents of both generations of the protocol
            assert [row["name"] for row in ls_over_http(served, TOKEN, mode)] == ["wide"]
        for wrong in (None, "wrong", TOKEN[:-1]):
            with pytest.raises(BaseExceptionGroup):
                ls_over_http(served, wrong)
        for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": f"stagedb_serve={TOKEN}"}):
            answer = post(served, **headers)
            assert answer.status == 401
            assert answer.headers["www-authenticate"] == "Bearer"
            assert TOKEN not in answer.text
        assert post(served, f"/mcp?token={TOKEN}").status == 401


def test_only_calls_from_no_other_site_are_answered(embedded_store: Store) -> None:
    with listening(embedded_store, None) as served:
        assert post(served).status in (200, 400)  # it reached the protocol
        for host in ("evil.test", "127.0.0.1.evil.test", "", "localhost@evil.test"):
            assert post(served, host=host).status in (400, 421), host
        for origin in ("http://evil.test", "http://6.6.6.6", "null", "http://127.0.0.1:1"):
            assert post(served, origin=origin).status == 403, origin
        for site in ("cross-site", "same-site"):
            assert post(served, sec_fetch_site=site).status == 403
        for method in ("GET", "DELETE", "PUT", "OPTIONS"):
            answer = post(served, method=method)
            assert answer.status == 405, method
            assert "access-control-allow-origin" not in answer.headers
        assert post(served, "/").status == 404
        assert post(served, "/login").status == 404
        assert post(served, content_type="text/plain").status in (400, 415)
        assert post(served, body={"x": "y" * MOST_REQUEST}).status == 413
        assert ls_over_http(served, None) == []


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "from stagedb.cli import main; main()", "mcp", *arguments]


def test_an_agent_starts_the_command(store: Store, store_environment: dict[str, str], tmp_path: Path) -> None:
    Stagedb(store).instantiate(card("llama"), name="wide", tp=2)
    environment = {**os.environ, **store_environment}
    program, *rest = command()
    parameters = StdioServerParameters(command=program, args=rest, env=environment, cwd=tmp_path)

    async def ask() -> tuple[int, list[dict[str, Any]], str]:
        async with Client(stdio_client(parameters)) as client:
            tools = (await client.list_tools()).tools
            found = reply_of(await client.call_tool("ls", {"kind": "instances"})).rows
            return len(tools), found, reply_of(await client.call_tool("show", {"word": "x"})).error

    tools, rows, error = anyio.run(ask)
    assert tools == 20
    assert [row["name"] for row in rows] == ["wide"]
    assert "in the store" in error
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_ends_the_command(embedded_store: Store, stagedb_home: Path) -> None:
    """While it waits for input, which a thread does."""
    environment = {**os.environ, "STAGEDB_HOME": str(stagedb_home), "STAGEDB_CONFIG": os.devnull}
    pipe = subprocess.PIPE
    started = subprocess.Popen(command(), stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment)
    assert started.stdin is not None and started.stdout is not None
    started.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}) + "\n")
    started.stdin.flush()
    assert json.loads(started.stdout.readline())["id"] == 1
    started.send_signal(signal.SIGINT)
    assert started.wait(30) == 130
    assert started.communicate()[1] == "Interrupted.\n"


def test_the_command_listens_and_shows_no_token(embedded_store: Store, stagedb_home: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "STAGEDB_HOME": str(stagedb_home), "STAGEDB_CONFIG": os.devnull}
    environment["STAGEDB_SERVE_TOKEN"] = TOKEN
    started = subprocess.Popen(
        command("--http", "--port", "0", "--token"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert started.stdout is not None and started.stderr is not None
        line = started.stdout.readline()
        assert line.startswith("tools for agents on http://127.0.0.1:") and line.endswith("/mcp\n")
        served = Served(line.removeprefix("tools for agents on ").removesuffix("/mcp\n"))
        assert post(served).status == 401
        assert ls_over_http(served, TOKEN) == []
        words = Path(f"/proc/{started.pid}/cmdline")
        assert TOKEN not in (words.read_text(encoding="utf-8") if words.exists() else "")
    finally:
        started.terminate()
        out, err = started.communicate(timeout=300)
    assert TOKEN not in out + err + line
    assert "the token is in STAGEDB_SERVE_TOKEN" in err


@pytest.mark.parametrize(("there", "words"), [(None, ""), ("1.30.0", ", and version 1.30.0 is here")])
def test_without_its_package_the_command_names_what_installs_it(
    offline: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    there: str | None,
    words: str,
) -> None:
    def version(name: str) -> str:
        if there is None:
            raise PackageNotFoundError(name)
        return there

    monkeypatch.setattr("stagedb.cli.mcp.version", version)
    refused = offline("mcp")
    assert (refused.status, refused.out) == (2, "")
    assert refused.err == f'Error: agents need the package `mcp` 2{words}: `pip install "stagedb[mcp]"`\n'


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "1"), "--port is about HTTP: add --http, or leave it out"),
        (("--no-token",), "--token is about HTTP"),
        (("--allow-host", "x"), "--allow-host is about HTTP"),
        (("--bytes", "10"), "--bytes"),
        (("--http", "--certificate", "x.pem"), "HTTPS needs both --certificate and --key"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    run: Run,  # noqa: F811
    arguments: tuple[str, ...],
    words: str,
) -> None:
    refused = run("mcp", *arguments)
    assert (refused.status, refused.out) == (2, "")
    assert words in refused.err and refused.err.count("\n") == 1
