"""Who may read: tokens, names of hosts, other sites; and that nothing is written."""

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from stagedb.api import Stagedb
from stagedb.errors import UsageError
from stagedb.serve.access import AccessRules, find_token, is_loopback, local_path, names_of
from stagedb.store import Store
from stagedb.store.failures import ReadOnlyError
from tests.serve.served import Served, serving, serving_opened

TOKEN = "a-token-for-the-tests"


@pytest.fixture
def closed(embedded_store: Store) -> Iterator[Served]:
    with serving(embedded_store, TOKEN) as found:
        yield found


def test_nothing_is_shown_without_the_token(closed: Served) -> None:
    for path in ("/", "/list/instances", "/nowhere", "/?token=", "/?token=wrong"):
        answer = closed.get(path)
        assert answer.status == 401, path
        assert "This server needs a token" in answer.text
        assert TOKEN not in answer.text
    assert closed.get("/", authorization="Bearer wrong").status == 401
    assert closed.get("/", cookie="stagedb_serve=wrong").status == 401
    assert closed.get("/", cookie=f"stagedb_serve={TOKEN}").status == 401
    assert closed.get("/static/pages.css").status == 200


def test_whether_the_store_answers_needs_no_token(closed: Served) -> None:
    answer = closed.get("/health")
    assert (answer.status, answer.text) == (200, "ok\n")
    assert closed.get("/health", "POST").status == 405
    assert closed.get("/health", host="evil.test").status == 421


def test_a_store_that_does_not_answer_is_asked_once_in_a_while() -> None:
    asked: list[int] = []

    def connect() -> Stagedb:
        asked.append(1)
        raise UsageError("no store answers at bolt://secret.test")

    with serving_opened(connect, TOKEN) as served:
        for _ in range(5):
            answer = served.get("/health")
            assert (answer.status, answer.text) == (503, "the store does not answer\n")
    assert len(asked) == 1


def test_a_link_with_the_token_is_used_once(closed: Served) -> None:
    answer = closed.get(f"/list/instances?sort=name&token={TOKEN}")
    assert answer.status == 303
    assert answer.headers["location"] == "/list/instances?sort=name"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=lax" in cookie
    assert TOKEN not in cookie
    assert closed.get("/list/instances", cookie=cookie.partition(";")[0]).status == 200
    assert closed.get("/list/instances", authorization=f"Bearer {TOKEN}").status == 200


def test_the_form_leads_to_the_page_that_was_asked_for(closed: Served) -> None:
    asked = closed.get("/list/profiles?sort=mfu")
    to = re.search(r'name="to" value="([^"]*)"', asked.text)
    assert to is not None
    form = {"content_type": "application/x-www-form-urlencoded"}
    right = closed.get("/login", "POST", urlencode({"token": TOKEN, "to": to[1]}), **form)
    assert (right.status, right.headers["location"]) == (303, "/list/profiles?sort=mfu")
    wrong = closed.get("/login", "POST", urlencode({"token": "wrong", "to": to[1]}), **form)
    assert wrong.status == 401
    assert "This is not the token" in wrong.text
    assert closed.get("/login", "POST", "x" * 20_000, **form).status == 401


@pytest.mark.parametrize("to", ["//evil.test", "/\\evil.test", "https://evil.test", "", "/a\nb", "evil"])
def test_a_form_leads_nowhere_else(to: str) -> None:
    assert local_path(to) == "/"


def test_only_names_of_this_machine_are_answered(closed: Served) -> None:
    for host in ("evil.test", "evil.test:8765", "127.0.0.1.evil.test", "", "localhost@evil.test", "[::1", "a b"):
        assert closed.get("/login", host=host).status in (400, 421), host
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8765", "10.0.0.7"):
        assert closed.get("/login", host=host).status == 200, host
    rules = AccessRules(None, names_of("0.0.0.0", ["Store.example."]))  # noqa: S104
    assert rules.is_host("store.example:443")
    assert not rules.is_host("example")


def test_another_site_can_only_lead_here(embedded_store: Store) -> None:
    with serving(embedded_store) as served:
        visit = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
        assert served.get("/", sec_fetch_site="cross-site", **visit).status == 200
        assert served.get("/", sec_fetch_site="cross-site", sec_fetch_mode="no-cors").status == 403
        framed = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "iframe"}
        assert served.get("/", sec_fetch_site="cross-site", **framed).status == 403
        assert served.get("/", sec_fetch_site="same-origin", sec_fetch_mode="cors").status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading_is_possible(embedded_store: Store, method: str) -> None:
    with serving(embedded_store) as served:
        answer = served.get("/list/instances", method)
        assert answer.status == 405
        assert "only reads" in answer.text


def test_every_answer_restricts_the_browser(closed: Served) -> None:
    for path in ("/", "/login", "/static/pages.css", "/static/nothing", "/?token=wrong"):
        headers = closed.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == ("no-cache" if path == "/static/pages.css" else "no-store")
    assert closed.get("/", host="evil.test").headers["x-content-type-options"] == "nosniff"


def test_files_are_those_of_the_package(closed: Served) -> None:
    for path in ("/static/../pages.py", "/static/%2e%2e/access.py", "/static/..%2faccess.py", "/static//etc/passwd"):
        assert closed.get(path).status in (401, 404), path


def test_the_connection_refuses_writes(embedded_store: Store) -> None:
    other = Store.__new__(Store)
    other.__dict__ |= embedded_store.__dict__
    other.only_read()
    with pytest.raises(ReadOnlyError, match="only reads"):
        other.write("schema/mark", version=1, applied=1, now=1)
    with pytest.raises(ReadOnlyError, match="only reads"):
        other.write_rows("memory/record", [{}], instance="any")
    assert other.version() == embedded_store.version()


def test_an_unexpected_error_shows_no_details(
    embedded_store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from stagedb.api import Stagedb

    def fail(self: Stagedb, *words: object, **more: object) -> None:
        raise KeyError("secret place")

    monkeypatch.setattr(Stagedb, "ls", fail)
    with serving(embedded_store) as served:
        answer = served.get("/list/graphs")
    assert answer.status == 500
    assert "stagedb itself failed" in answer.text
    assert "secret place" not in answer.text
    assert "Traceback" not in answer.text
    assert "secret place" in caplog.text


def test_a_token_is_made_once_for_its_owner(tmp_path: Path) -> None:
    env = {"STAGEDB_HOME": str(tmp_path / "home")}
    first, second = find_token(None, env), find_token(None, env)
    assert first == second
    file = Path(first.source)
    assert len(first.token) > 40
    assert file.stat().st_mode & 0o777 == 0o600
    assert first.token not in repr(first)
    assert find_token(None, {**env, "STAGEDB_SERVE_TOKEN": TOKEN}).token == TOKEN
    own = tmp_path / "own"
    own.write_text(f"{TOKEN}-of-a-file\n", encoding="utf-8")
    assert find_token(own, {**env, "STAGEDB_SERVE_TOKEN": TOKEN}).token == f"{TOKEN}-of-a-file"
    for wrong in ("short", "with spaces in the middle of it", "", "ä" * 20):
        own.write_text(wrong, encoding="utf-8")
        with pytest.raises(UsageError, match="cannot be used"):
            find_token(own, env)


def test_only_this_machine_needs_no_token() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "example.test", "")))  # noqa: S104
