"""The application: its pages, what they share, and the bounds of what they show."""

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from stagedb.api import Stagedb, lookup, overview
from stagedb.errors import StagedbError
from stagedb.serve import (
    compare_page,
    explore_page,
    home_pages,
    instance_pages,
    list_pages,
    memory_page,
    page_frames,
    plan_pages,
    query_pages,
    run_pages,
    search_pages,
    step_pages,
    team_pages,
    write_pages,
)
from stagedb.serve.access import WRITER, WRITER_COOKIE, AccessGate, AccessRules, form_words, given_token
from stagedb.serve.shared_store import KeptResults, SharedStore
from stagedb.store.recent_rows import RecentRows

# Whether the server and its store answer: for the health check of a container or a proxy, which has no token.

PATH = "/health"
ASKED_AGAIN = 5.0
"""Seconds after which the store is asked again: whoever has no token cannot keep it busy."""


class StoreHealth:
    """Whether a store answers, asked at most once in `ASKED_AGAIN` seconds."""

    def __init__(self, shared: SharedStore) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._asked: float | None = None
        self._answers = False

    def answer(self, request: Request) -> Response:
        """200 `ok`, or 503 if the store does not answer. Nothing of the store, and no error, is shown."""
        del request
        with self._lock:
            now = time.monotonic()
            if self._asked is None or now - self._asked > ASKED_AGAIN:
                self._answers = self._ask()
                self._asked = time.monotonic()
            answers = self._answers
        if answers:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("the store does not answer\n", 503)

    def _ask(self) -> bool:
        try:
            self._shared.read(lambda db: db.store.version())
        except StagedbError:
            return False
        return True


# Pages that were just made: readers who ask for one at the same time, or a moment later, get the same.

MOST = 256
"""Pages that are kept."""
LARGEST = 2_000_000
"""Bytes of a page that is kept."""


class RecentAnswers:
    """Answers by key, each shown to other readers for some seconds. Concurrent requests for one key make it once."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._kept: OrderedDict[Hashable, tuple[float, Response]] = OrderedDict()
        self._making: dict[Hashable, asyncio.Task[Response]] = {}

    async def get(self, key: Hashable, compute: Callable[[], Awaitable[Response]]) -> Response:
        """The answer of a key, computed if it is not kept.

        An error or a streamed answer is for the one who asked alone. compute: makes the answer.
        """
        kept = self._kept.get(key)
        if kept is not None and self._clock() - kept[0] < self._seconds:
            return kept[1]
        making = self._making.get(key)
        if making is None:
            making = self._making[key] = asyncio.ensure_future(self._make(key, compute))
            # A reader who leaves does not end what others wait for.
            return await asyncio.shield(making)
        try:
            answer = await asyncio.shield(making)
        except Exception:  # noqa: BLE001 - the one who asked first has it; the next one may succeed
            return await compute()
        if isinstance(answer, StreamingResponse):
            # A streamed page serves one reader. Its parts are kept soon, so that this reader gets a whole page.
            return await self.get(key, compute)
        return answer if _shareable(answer) else await compute()

    def clear(self) -> None:
        """Forget all, as the store has changed: what is being made now, too, which may have read what was before."""
        self._kept.clear()
        self._making.clear()

    async def _make(self, key: Hashable, compute: Callable[[], Awaitable[Response]]) -> Response:
        me = asyncio.current_task()
        try:
            answer = await compute()
            if _shareable(answer) and self._making.get(key) is me:
                self._kept[key] = (self._clock(), answer)
                self._kept.move_to_end(key)
                while len(self._kept) > MOST:
                    self._kept.popitem(last=False)
            return answer
        finally:
            if self._making.get(key) is me:
                del self._making[key]


def _shareable(answer: Response) -> bool:
    """Whether an answer can be sent more than once, and is worth it."""
    whole = not isinstance(answer, StreamingResponse | FileResponse)
    return whole and answer.status_code in (200, 303) and len(answer.body) <= LARGEST


# Pages that a server makes before anybody asks for them, so that its first reader waits no longer than later ones.
#
# A store plans a query when it is first asked, which takes a Neo4j server tenths of a second each.

FIRST_PAGES = ("/", "/list/instances", "/list/profiles", "/cypher", "/lookup?text=stagedb")
OTHERS = ("/find", "/queries", "/log", "/list/graphs", "/list/searches", "/list/runs", "/jobs", "/explore", "/models")
"""Pages that are made last."""
AWAY = 503
"""The status of a page whose store does not answer."""


async def make_first_pages(app: Starlette) -> None:
    """Make the first pages, those of the newest thing of each kind, and all other lists, one after the other.

    It ends where the store is away: the page of a reader names that.
    app: the application, whose state has the connection as `shared`.
    """
    shared: SharedStore = app.state.shared
    for address in FIRST_PAGES:
        if await _status(app, address) == AWAY:
            return
    for address in (*await run_in_threadpool(lambda: shared.read(_newest)), *OTHERS):
        if await _status(app, address) == AWAY:
            return


def _newest(db: Stagedb) -> Sequence[str]:
    """The addresses of the newest thing of each kind, of the memory of an instance, and of the plans of a model.

    The instance is that of the newest profile, whose pages ask for more than those of one without profiles.
    """
    found = overview.overview(db.store, sys.maxsize)  # the newest thing of a kind may be older than all of another
    newest: dict[str, str] = {}
    for each in found.newest:
        newest.setdefault(each.kind, each.id)
    profile = lookup.find_profile(db.store, newest["profiles"]) if "profiles" in newest else None
    if profile is not None:
        newest["instances"] = profile.instance
    addresses = [f"/{kind}/{id_}" for kind, id_ in newest.items()]
    if "instances" in newest:
        addresses.append(f"/instances/{newest['instances']}/memory")
        addresses.append("/explore?" + urlencode({"node": f"Instance/{newest['instances']}"}))
    addresses += ["/find?" + urlencode({"model": each.model, "system": each.system}) for each in found.best[:1]]
    return addresses


async def _status(app: Starlette, address: str) -> int:
    """The status of a page that is made. What it shows goes nowhere: no rule of access applies to it."""
    path, _, query = address.partition("?")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"host", b"localhost")],
        "scheme": "http",
        "server": ("localhost", 80),
        "client": None,
        "app": app,
    }
    status = 500

    async def receive() -> Message:
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]

    await app.router(scope, receive, send)
    return status


Page = Callable[[Request], Response]

MOST_ASKING = 16
"""Answers to queries at the same time, at most. The server's threads, 40 of them, are for the other pages too."""

TURNS = 2
"""Time-outs of queries for which a request waits for its turn."""


@dataclass(frozen=True)
class Limits:
    """Bounds of a server.

    timeout: seconds after which a query is ended; a request waits for its turn for at most twice as long. rows: rows of
    a download. working: requests that compute or ask the store at the same time; others wait. asking: answers to
    queries at the same time, half as many as cores up to `MOST_ASKING`, which take no place of other pages. kept:
    reports and memory tables that are kept. searches: those whose candidates are kept, which may be many. recent: for
    so many seconds a page is shown to others as it is, so that fifty readers cost as much as one; for half of them,
    pages share the rows of lists.
    """

    timeout: float = 60.0
    rows: int = 100_000
    working: int = 8
    asking: int = field(default_factory=lambda: min(MOST_ASKING, max(2, (os.cpu_count() or 1) // 2)))
    kept: int = 32
    searches: int = 4
    recent: float = 2.0


PAGES: tuple[tuple[str, Page], ...] = (
    ("/", home_pages.home),
    ("/lookup", home_pages.lookup),
    ("/models", list_pages.models),
    ("/models/{name}", list_pages.model),
    ("/list/instances", plan_pages.plans),
    ("/list/profiles", plan_pages.plans),
    ("/list/{kind}", list_pages.listing),
    ("/show/{word}", instance_pages.show),
    ("/graphs/{word}", instance_pages.graph),
    ("/instances/{word}", instance_pages.instance),
    ("/instances/{word}/memory", memory_page.memory),
    ("/instances/{word}/summary", step_pages.summary),
    ("/profiles/{word}", step_pages.profile),
    ("/profiles/{word}/report", step_pages.report),
    ("/profiles/{word}/summary", step_pages.summary),
    ("/profiles/{word}/trace", step_pages.trace),
    ("/searches/{word}", search_pages.search),
    ("/searches/{word}/report", search_pages.report),
    ("/runs/{word}/report", run_pages.report),
    ("/runs/{word}/trace", run_pages.trace),
    ("/runs/{word}", run_pages.run),
    ("/find", team_pages.find),
    ("/log", team_pages.log),
    ("/jobs", home_pages.jobs),
    ("/compare", compare_page.compare),
    ("/compare/report", compare_page.pair_report),
    ("/compare/pipelines.svg", compare_page.picture),
    ("/queries", query_pages.queries),
    ("/queries/{name}", query_pages.named_query),
    ("/cypher", query_pages.cypher),
    ("/explore", explore_page.explore),
)
"""Every page that reads the store, by its path."""

LISTS = ("graphs", "instances", "profiles", "searches", "runs")
"""Kinds whose pages are at `/KIND/ID`: without an id the address leads to the list."""

FORMS: tuple[tuple[str, Page], ...] = (("/remove/{word}", write_pages.removal),)
"""Pages for those who may write, which write nothing themselves."""

WRITES: tuple[tuple[str, Page], ...] = (
    ("/write/name", write_pages.name),
    ("/write/tag", write_pages.tag),
    ("/write/star", write_pages.star),
    ("/write/note", write_pages.note),
    ("/write/remove", write_pages.remove),
)
"""What writers ask for. The gate lets only requests with their token, from a page of this server, come here."""

SHARED: list[str | tuple[str, str]] = [("stagedb.reports", "shared")]
"""Folders of other packages whose files pages have too."""

ASKING: Mapping[Page, frozenset[str]] = {
    query_pages.named_query: frozenset(),
    query_pages.cypher: frozenset(["query"]),
    explore_page.explore: frozenset(["query", "start", "to"]),
}
"""Pages that answer queries of users, which may take as long as a query may, and the words of an address that ask for
that; without words, any word does.
"""


class KeptFiles(StaticFiles):
    """Files that show nothing of the store. A browser keeps them, and asks each time whether they changed."""

    def file_response(self, *args: Any, **words: Any) -> Response:
        """The answer with a file, or that the browser has it. args, words: Starlette's."""
        answer = super().file_response(*args, **words)
        answer.headers["cache-control"] = "no-cache"
        return answer


def application(
    connect: Callable[[], Stagedb], rules: AccessRules, limits: Limits | None = None, *, reads_ahead: bool = False
) -> Starlette:
    """The application over the store that `connect` opens. The connection of pages refuses every write.

    The store is opened by the first request, and closed when the server ends. Where the rules have a token of writers,
    the first write opens a second connection.

    connect: opens the store. rules: who may read and write. limits: the usual ones if left out. reads_ahead: whether
    pages are made as soon as the server has started.
    """
    limits = limits or Limits()
    rows = RecentRows(limits.recent / 2)
    shared, writing = SharedStore(connect, recent=rows), SharedStore(connect, writes=True)
    state = {
        "rows": rows,
        "shared": shared,
        "writing": writing,
        "kept": KeptResults(limits.kept),
        "kept_searches": KeptResults(limits.searches),
        "recent": RecentAnswers(limits.recent),
        "limits": limits,
        "working": asyncio.Semaphore(limits.working),
        "asking": asyncio.Semaphore(limits.asking),
    }
    routes = [Route(path, _guarded(read), methods=["GET"]) for path, read in PAGES]
    routes += [Route(f"/{kind}", _to_list, methods=["GET"]) for kind in LISTS]
    if rules.writer is not None:
        routes += [Route(path, _guarded(_for_writers(read)), methods=["GET"]) for path, read in FORMS]
        routes += [Route(path, _written(write), methods=["POST"]) for path, write in WRITES]
        routes.append(Route("/logout", _logout, methods=["POST"]))
    login = _login(rules)
    app = Starlette(
        routes=[
            *routes,
            Route("/login", login, methods=["GET", "POST"]),
            Route(PATH, StoreHealth(shared).answer, methods=["GET"]),
            Mount(
                "/static",
                KeptFiles(directory=page_frames.FOLDER / "static", packages=SHARED),
                middleware=[Middleware(GZipMiddleware)],
            ),
        ],
        exception_handlers={HTTPException: _http_error},
        middleware=[Middleware(AccessGate, rules=rules, login=login_page)],
        lifespan=_lifespan((shared, writing), reads_ahead),
    )
    for name, value in state.items():
        setattr(app.state, name, value)
    return app


class LaterParts(StreamingResponse):
    """An answer whose parts are computed while it is sent, as soon as its request has a turn."""

    def __init__(self, answer: StreamingResponse, turns: asyncio.Semaphore) -> None:
        super().__init__(answer.body_iterator, answer.status_code)
        self.raw_headers = answer.raw_headers
        self._turns = turns

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer."""
        async with self._turns:
            await super().__call__(scope, receive, send)


def _to_list(request: Request) -> Response:
    """The list of a kind, with the words of the address."""
    return RedirectResponse(request.url.replace(path=f"/list{request.url.path}", scheme="", netloc=""), 303)


def _guarded(read: Page) -> Callable[[Request], Any]:
    """A page that waits for its turn, and whose errors become pages.

    Who waits takes no thread, so that long queries leave those to other pages.
    """

    def answered(request: Request) -> Response:
        try:
            return read(request)
        except HTTPException:
            raise
        except Exception as error:  # noqa: BLE001 - no error may reach the browser as a traceback
            return page_frames.error_page(request, error)

    async def compute(request: Request) -> Response:
        state = request.app.state
        words = request.query_params.keys()
        asks = read in ASKING and bool(words & ASKING[read] if ASKING[read] else words)
        turns: asyncio.Semaphore = state.asking if asks else state.working
        try:
            async with asyncio.timeout(TURNS * state.limits.timeout):
                await turns.acquire()
        except TimeoutError:
            busy = page_frames.BusyError(
                f"this server is busy with other {'queries' if asks else 'pages'}, and this one has waited for "
                f"{TURNS * state.limits.timeout:g} s: try it again later"
            )
            return await run_in_threadpool(page_frames.error_page, request, busy)
        try:
            found = await run_in_threadpool(answered, request)
        finally:
            turns.release()
        return LaterParts(found, turns) if isinstance(found, StreamingResponse) else found

    async def answer(request: Request) -> Response:
        recent: RecentAnswers = request.app.state.recent
        # The page of a writer has forms. A download may be large, and is computed for each reader.
        if request.method == "POST" or "format" in request.query_params:
            return await compute(request)
        key = (request.url.path, request.url.query, request.scope.get(WRITER))
        return await recent.get(key, lambda: compute(request))

    return answer


def _for_writers(read: Page) -> Page:
    """A page that readers do not get."""

    def answer(request: Request) -> Response:
        if not request.scope.get(WRITER):
            raise HTTPException(403, "This page is for those who may write: /login takes the writers' token.")
        return read(request)

    return answer


def _written(write: Page) -> Callable[[Request], Any]:
    """A request that writes, with the fields of its form."""
    guarded = _guarded(_for_writers(write))

    async def answer(request: Request) -> Response:
        words = await form_words(request)
        if words is None:
            raise HTTPException(413, "The form is too large.")
        request.state.words = words
        try:
            answered: Response = await guarded(request)
        finally:
            request.app.state.rows.clear()  # before the pages, which are made of them
            request.app.state.recent.clear()
        return answered

    return answer


async def _logout(request: Request) -> Response:
    """End writing: reading goes on."""
    del request
    answer = RedirectResponse("/", status_code=303)
    answer.delete_cookie(WRITER_COOKIE, path="/")
    return answer


def _lifespan(stores: Sequence[SharedStore], reads_ahead: bool) -> Any:
    @contextlib.asynccontextmanager
    async def run(app: Starlette) -> AsyncIterator[None]:
        ahead = asyncio.create_task(make_first_pages(app)) if reads_ahead else None
        yield
        if ahead is not None:
            ahead.cancel()
            # A page that fails is made again for its reader, who gets the error.
            await asyncio.gather(ahead, return_exceptions=True)
        for each in stores:
            each.close()

    return run


async def _http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code != 404:
        return Response(f"{error.detail}\n", error.status_code, media_type="text/plain")
    return page_frames.missing_page(request)


async def login_page(scope: Any, receive: Any, send: Any) -> None:
    """The form that asks for the token, at any address. scope, receive, send: of an ASGI request."""
    request = Request(scope, receive)
    to = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    await page_frames.page(request, "login.html", 401, to=to, wrong=False, reads=False)(scope, receive, send)


def _login(rules: AccessRules) -> Callable[[Request], Any]:
    async def login(request: Request) -> Response:
        # A reader who is known already comes here for the writers' token.
        reads = rules.is_known(request.headers)
        if request.method != "POST":
            to = request.query_params.get("to", "/")
            return page_frames.page(request, "login.html", to=to, wrong=False, reads=reads)
        token, to = await given_token(request)
        if rules.is_writer_token(token):
            return rules.let_in(to, writes=True)
        if rules.is_token(token) or (rules.token is None and rules.writer is None):
            return rules.let_in(to)
        return page_frames.page(request, "login.html", 401, to=to, wrong=True, reads=reads)

    return login
