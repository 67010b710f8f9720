"""Writing from pages: who may, from where, with what; and that everything else is refused and changes nothing."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urlencode

import pytest

from stagedb.api import Profile, Stagedb
from stagedb.errors import UsageError
from stagedb.serve import application
from stagedb.serve.access import AccessRules, find_writer_token, names_of
from stagedb.serve.page_routes import WRITES
from stagedb.store import Store
from stagedb.store.failures import ReadOnlyError
from tests.ir.tiny import card
from tests.serve.served import Answer, KeptOpen, Served, serving
from tests.serve.test_answers import asked, content, paths, stock

READER, WRITER = "the-token-of-readers", "the-token-of-writers"
PATHS = [path for path, _ in WRITES]
FORM = "application/x-www-form-urlencoded"


@pytest.fixture
def made(embedded_store: Store) -> Profile:
    return Stagedb(embedded_store).profile(model=card("llama"), tp=2, dp=2, name="base")


@pytest.fixture
def served(embedded_store: Store, made: Profile) -> Iterator[Served]:
    with serving(embedded_store, READER, writer=WRITER) as found:
        yield found


def cookies(served: Served, token: str) -> str:
    """What a browser has after it gave a token."""
    import http.client
    from urllib.parse import urlsplit

    connection = http.client.HTTPConnection(urlsplit(served.address).netloc)
    connection.request("POST", "/login", urlencode({"token": token}), {"content-type": FORM})
    found = connection.getresponse()
    assert found.status == 303
    given = [value.partition(";")[0] for name, value in found.getheaders() if name.lower() == "set-cookie"]
    connection.close()
    return "; ".join(given)


def write(served: Served, path: str, words: dict[str, str], **headers: str) -> Answer:
    """A request of a writer's page, with other headers."""
    usual = {"origin": served.address, "sec_fetch_site": "same-origin", "content_type": FORM}
    usual["cookie"] = headers.pop("cookie", "") or cookies(served, WRITER)
    kept = {name: value for name, value in (usual | headers).items() if value}
    return served.get(path, "POST", urlencode(words), **kept)


def words_for(made: Profile) -> dict[str, str]:
    """Fields with which every write would succeed."""
    id = made.info.id
    return {"id": id, "name": "other", "tags": "good", "star": id, "note": "text", "force": "1", "to": "/list/profiles"}


def test_a_server_without_the_token_of_writers_only_reads(embedded_store: Store) -> None:
    found = stock(embedded_store)
    before = content(embedded_store)
    with serving(embedded_store) as served:
        for path in (*PATHS, "/logout", "/remove/first"):
            for cookie in ("", "stagedb_serve_writer=", "stagedb_serve_writer=x"):
                answer = served.get(
                    path,
                    "POST",
                    urlencode(words_for(found[0])),
                    content_type=FORM,
                    cookie=cookie,
                    origin=served.address,
                )
                assert (answer.status, "only reads" in answer.text) == (405, True), path
        for path in (*PATHS, "/remove/first"):
            assert served.get(path).status == 404
        for path in paths(found):
            page = served.get(path).text
            assert 'method="post"' not in page, path
            assert "/login" not in page, path
    assert content(embedded_store) == before


def test_readers_see_no_form_that_writes(embedded_store: Store) -> None:
    found = stock(embedded_store)
    with serving(embedded_store, READER, writer=WRITER) as served:
        reader, writer = cookies(served, READER), cookies(served, WRITER)
        for path in paths(found):
            page = served.get(path, cookie=reader).text
            assert 'method="post"' not in page, path
        for path in ("/instances/wide", "/profiles/first", "/graphs/" + found[0].instance.graph):
            assert 'action="/write/note"' in served.get(path, cookie=writer).text
        assert served.get("/remove/first", cookie=reader).status == 403
        assert served.get("/remove/first").status == 401
        assert "Reading needs no further token" in served.get("/login", cookie=reader).text


REFUSED: dict[str, tuple[dict[str, str], int]] = {
    "no token": ({"cookie": "x=y"}, 403),
    "a made-up cookie": ({"cookie": "stagedb_serve_writer=x"}, 403),
    "the token as the cookie": ({"cookie": f"stagedb_serve_writer={WRITER}"}, 403),
    "the token of readers": ({"cookie": "x=y", "authorization": f"Bearer {READER}"}, 403),
    "another site": ({"origin": "https://evil.test", "sec_fetch_site": "cross-site"}, 403),
    "another origin alone": ({"origin": "https://evil.test", "sec_fetch_site": ""}, 403),
    "another site alone": ({"origin": "", "sec_fetch_site": "cross-site"}, 403),
    "another port": ({"origin": "http://127.0.0.1:1", "sec_fetch_site": "same-site"}, 403),
    "a sandbox": ({"origin": "null", "sec_fetch_site": "cross-site"}, 403),
    "a broken origin": ({"origin": "http://[", "sec_fetch_site": ""}, 403),
    "typed into the address bar": ({"origin": "", "sec_fetch_site": "none"}, 403),
    "no word of where it is from": ({"origin": "", "sec_fetch_site": ""}, 403),
    "the same with a made-up token": ({"origin": "", "sec_fetch_site": "", "authorization": "Bearer x"}, 403),
    "another form": ({"content_type": "text/plain"}, 415),
    "no form": ({"content_type": ""}, 415),
    "another name": ({"host": "evil.test"}, 421),
}


@pytest.mark.parametrize("path", PATHS)
def test_requests_that_may_not_write_are_refused(
    embedded_store: Store, made: Profile, served: Served, path: str
) -> None:
    before = content(embedded_store)
    for case, (headers, status) in REFUSED.items():
        answer = write(served, path, words_for(made), **headers)
        assert (answer.status, content(embedded_store)) == (status, before), case


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_only_a_post_writes(embedded_store: Store, made: Profile, served: Served, method: str) -> None:
    before = content(embedded_store)
    cookie = cookies(served, WRITER)
    for path in PATHS:
        answer = served.get(
            f"{path}?{urlencode(words_for(made))}", method, cookie=cookie, origin=served.address, content_type=FORM
        )
        assert answer.status == 405
    assert content(embedded_store) == before


@pytest.mark.parametrize(
    ("path", "words", "error"),
    [
        ("/write/name", {"name": "x"}, "the form has no id"),
        ("/write/name", {"id": "ID"}, "the form has no name"),
        ("/write/name", {"id": "ID", "name": "somebody/else"}, "nobody moves a name of somebody else"),
        ("/write/name", {"id": "nothing-like-it", "name": "x"}, "no graph, instance, profile, search or run"),
        ("/write/name", {"id": "base", "name": "x"}, "is not the whole id"),
        ("/write/tag", {"id": "ID", "tags": "x" * 100}, "is not a tag"),
        ("/write/tag", {"id": "ID", "untag": "none"}, "has no tag"),
        ("/write/star", {"unstar": "ID"}, "has no tag"),
        ("/write/note", {"id": "ID", "note": "x" * 4_001}, "a note has 1 to 4,000"),
        ("/write/remove", {"id": "base"}, "is not the whole id"),
    ],
)
def test_what_cannot_be_written_is_named(
    embedded_store: Store, made: Profile, served: Served, path: str, words: dict[str, str], error: str
) -> None:
    before = content(embedded_store)
    given = {name: made.info.id if text == "ID" else text for name, text in words.items()}
    answer = write(served, path, given)
    assert answer.status == 400
    assert error in unescape(answer.text).replace("4000", "4,000")
    assert content(embedded_store) == before
    assert write(served, path, {**words_for(made), "note": "x" * 70_000}).status == 413


def test_writers_name_tag_star_and_note(embedded_store: Store, made: Profile, served: Served) -> None:
    db, id = Stagedb(embedded_store), made.info.id
    answer = write(served, "/write/name", {"id": id, "name": "fast", "to": f"/profiles/{id}"})
    assert (answer.status, answer.headers["location"]) == (303, f"/profiles/{id}")
    assert db.show("fast").id == id
    assert (
        write(served, "/write/tag", {"id": id, "tags": "good, better", "to": "//evil.test"}).headers["location"] == "/"
    )
    assert write(served, "/write/tag", {"id": id, "untag": "good"}).status == 303
    assert write(served, "/write/note", {"id": id, "note": "<b>it</b> runs"}).status == 303
    assert write(served, "/write/star", {"star": id, "to": "/list/profiles"}).status == 303
    found = db.show(id)
    assert sorted(found.tags) == ["better", "star"]
    assert any("<b>it</b> runs" in each for each in found.notes)
    cookie = cookies(served, WRITER)
    page = served.get("/list/profiles?sort=tags", cookie=cookie).text
    assert "★ base" in page
    assert f'name="unstar" value="{id}"' in page
    assert "★ base" in served.get("/list/profiles?tag=star", cookie=cookie).text
    assert "&lt;b&gt;it&lt;/b&gt; runs" in served.get(f"/profiles/{id}", cookie=cookie).text
    assert write(served, "/write/star", {"unstar": id}).status == 303
    assert db.show(id).tags == ("better",)
    log = [row["action"] for row in db.log(id)]
    assert {"named", "tagged", "untagged", "noted"} <= set(log)


def test_a_program_writes_with_the_token_alone(embedded_store: Store, made: Profile, served: Served) -> None:
    words, bearer = {"id": made.info.id, "tags": "ci"}, f"Bearer {WRITER}"
    answer = served.get("/write/tag", "POST", urlencode(words), authorization=bearer, content_type=FORM)
    assert answer.status == 303
    assert Stagedb(embedded_store).show(made.info.id).tags == ("ci",)
    elsewhere = served.get(
        "/write/tag", "POST", urlencode(words), authorization=bearer, content_type=FORM, origin="https://evil.test"
    )
    assert elsewhere.status == 403
    assert served.get("/list/profiles", authorization=bearer).status == 200, "writers may read"


def test_removing_has_two_steps(embedded_store: Store, made: Profile, served: Served) -> None:
    db, instance = Stagedb(embedded_store), made.instance.id
    page = served.get(f"/remove/{instance}", cookie=cookies(served, WRITER))
    assert "It goes with 1 profiles" in page.text
    assert made.info.id in page.text
    assert db.show(instance).id == instance, "the first step removes nothing"
    answer = write(served, "/write/remove", {"id": instance})
    assert (answer.status, answer.headers["location"]) == (303, f"/log?word={instance}")
    assert list(db.ls("instances")) == list(db.ls("profiles")) == []
    assert "removed" in served.get(f"/log?word={instance}", cookie=cookies(served, WRITER)).text
    graph = db.instantiate(card("llama"), dp=2).graph
    refused = write(served, "/write/remove", {"id": graph})
    assert refused.status == 400
    assert "need graph" in unescape(refused.text)
    assert write(served, "/write/remove", {"id": graph, "force": "1"}).status == 303
    assert list(db.ls("graphs")) == []


def test_the_token_of_writers_is_given_to_the_form_alone(made: Profile, served: Served) -> None:
    assert served.get(f"/?token={WRITER}").status == 401
    given = cookies(served, WRITER)
    assert "stagedb_serve=" in given
    assert "stagedb_serve_writer=" in given
    assert WRITER not in given
    assert "stagedb_serve_writer" not in cookies(served, READER)
    answer = served.get("/login", "POST", urlencode({"token": WRITER, "to": "/log"}), content_type=FORM)
    assert answer.headers["location"] == "/log"
    strict = answer.headers["set-cookie"]  # the last one
    assert "SameSite=strict" in strict
    assert "HttpOnly" in strict
    ended = write(served, "/logout", {}, cookie=given)
    assert ended.status == 303
    assert 'stagedb_serve_writer=""' in ended.headers["set-cookie"]
    assert write(served, "/logout", {}, cookie=given, origin="https://evil.test").status == 403


def test_the_connection_of_pages_refuses_writes_of_writers_too(
    embedded_store: Store, made: Profile, served: Served
) -> None:
    before = content(embedded_store)
    assert served.get(asked(query="CREATE (n)"), cookie=cookies(served, WRITER)).status == 400
    app = application(
        lambda: KeptOpen(embedded_store), AccessRules(None, names_of("127.0.0.1", ()), writer=WRITER), None
    )
    with pytest.raises(ReadOnlyError, match="only reads"):
        app.state.shared.read(lambda db: db.tag(made.info.id, "x"))
    assert content(embedded_store) == before
    app.state.writing.write(lambda db: db.tag(made.info.id, "x"))
    assert Stagedb(embedded_store).show(made.info.id).tags == ("x",)


def test_a_server_for_this_machine_asks_writers_alone(embedded_store: Store, made: Profile) -> None:
    with serving(embedded_store, writer=WRITER) as served:
        page = served.get(f"/profiles/{made.info.id}")
        assert page.status == 200
        assert 'method="post"' not in page.text
        assert re.search(r'href="/login\?to=%2Fprofiles%2F\w+">write<', page.text)
        assert served.get("/login", "POST", urlencode({"token": "wrong"}), content_type=FORM).status == 401
        assert write(served, "/write/tag", {"id": made.info.id, "tags": "x"}, cookie="a=b").status == 403
        assert write(served, "/write/tag", {"id": made.info.id, "tags": "x"}).status == 303


def test_the_token_of_writers_has_no_default(tmp_path: Path) -> None:
    env = {"STAGEDB_HOME": str(tmp_path / "home")}
    assert find_writer_token(None, env) is None
    assert not (tmp_path / "home").exists()
    found = find_writer_token(None, {**env, "STAGEDB_SERVE_WRITER_TOKEN": WRITER})
    assert found is not None
    assert (found.token, found.source) == (WRITER, "STAGEDB_SERVE_WRITER_TOKEN")
    assert WRITER not in repr(found)
    file = tmp_path / "token"
    file.write_text("short", encoding="utf-8")
    with pytest.raises(UsageError, match=r"--writer-token-file .* cannot be used"):
        find_writer_token(file, env)
    rules = AccessRules(READER, frozenset())
    assert rules.with_writer(None).writer is None
    assert not rules.is_writer_token("")
    with pytest.raises(UsageError, match="are the same"):
        rules.with_writer(READER)
