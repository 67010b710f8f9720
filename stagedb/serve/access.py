"""Who may read and write: tokens, cookies that replace them, names of this host, what a browser may do with a page.

A page of another site can make a browser send requests here. So the `Host` header must be a name of this machine or an
address (a name of another site may point to this machine), and a request that another site caused must be a visit.
A request that writes needs the writers' token and comes from a page of this server.
"""

import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request, cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from stagedb.errors import UsageError
from stagedb.files import read_text
from stagedb.places import embedded_home

COOKIE: Final = "stagedb_serve"
WRITER_COOKIE: Final = "stagedb_serve_writer"
WRITING: Final = ("/write/", "/logout")
"""Paths of requests that write, and of the one that ends writing."""
WRITER: Final = "stagedb.writer"
"""Whether a request may write, in its scope; None on a server where nobody may."""
FORM: Final = "application/x-www-form-urlencoded"
LARGEST_FORM = 65_536
"""Bytes of a form that writes: a note has 4,000 characters."""
FREE: Final = ("/static/", "/login", "/health")
"""Paths that need no token: they show nothing of the store but, for /health, whether it answers."""

HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "form-action 'self'; frame-src 'self'; frame-ancestors 'self'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "SAMEORIGIN",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer that does not have its own."""


@dataclass(frozen=True)
class AccessRules:
    """Who may read. token: None lets everybody in who reaches the port. hosts: names, in lower case, without ports.

    secure: the cookie is for HTTPS alone. writer: the token of those who may write, and read; None: nobody may write.
    """

    token: str | None = field(repr=False)
    hosts: frozenset[str]
    secure: bool = False
    writer: str | None = field(default=None, repr=False)

    def with_writer(self, writer: str | None) -> Self:
        """These rules with a token of writers.

        writer: that token; None: nobody may write. Raises UsageError if it is the token of readers.
        """
        if writer is not None and self.is_token(writer):
            raise UsageError("the token of readers and that of writers are the same: give writers another one")
        return replace(self, writer=writer)

    def is_token(self, given: str) -> bool:
        """Whether a text is the readers' token. The time of the comparison does not depend on where they differ.

        given: the text.
        """
        return self.token is not None and hmac.compare_digest(_digest(given), _digest(self.token))

    def is_writer_token(self, given: str) -> bool:
        """Whether a text is the writers' token. given: the text."""
        return self.writer is not None and hmac.compare_digest(_digest(given), _digest(self.writer))

    @property
    def cookie(self) -> str:
        """The value of a reader's cookie: a keyed digest (HMAC) of the token, which does not give the token away."""
        return hmac.new((self.token or "").encode(), b"stagedb serve", hashlib.sha256).hexdigest()

    @property
    def writer_cookie(self) -> str:
        """The value of a writer's cookie: a keyed digest (HMAC) of the writers' token."""
        return hmac.new((self.writer or "").encode(), b"stagedb serve writer", hashlib.sha256).hexdigest()

    def is_known(self, headers: Headers) -> bool:
        """Whether a request has the cookie, or the token in an `Authorization` header. Writers may read.

        headers: of the request.
        """
        cookie = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
        known = self.has_token(headers) or hmac.compare_digest(_digest(cookie), _digest(self.cookie))
        return known or self.is_writer(headers)

    def is_writer(self, headers: Headers) -> bool:
        """Whether a request has the writers' cookie, or their token in an `Authorization` header.

        headers: of the request.
        """
        if self.writer is None:
            return False
        cookie = cookie_parser(headers.get("cookie", "")).get(WRITER_COOKIE, "")
        return self.is_writer_token(_bearer(headers)) or hmac.compare_digest(
            _digest(cookie), _digest(self.writer_cookie)
        )

    def has_token(self, headers: Headers) -> bool:
        """Whether a request has the token in an `Authorization` header, or none is needed. headers: of the request."""
        return self.token is None or self.is_token(_bearer(headers))

    def is_host(self, header: str) -> bool:
        """Whether a `Host` header is an address, or a name of this machine."""
        found = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/\s]*)(:[0-9]{1,5})?", header)
        if found is None:
            return False
        name = found[1].strip("[]").rstrip(".").lower()
        return name in self.hosts or _is_address(name)

    def let_in(self, to: str, *, writes: bool = False) -> Response:
        """Send a browser that has given the token to a path of this server, with the cookie.

        writes: it has given that of writers. Their cookie ends with the browser, and no link of another site sends it.
        """
        answer = RedirectResponse(local_path(to), status_code=303)
        answer.set_cookie(
            COOKIE, self.cookie, httponly=True, samesite="lax", secure=self.secure, path="/", max_age=30 * 86_400
        )
        if writes:
            answer.set_cookie(
                WRITER_COOKIE, self.writer_cookie, httponly=True, samesite="strict", secure=self.secure, path="/"
            )
        return answer


class RefusingGate(ABC):
    """Middleware that answers some requests itself, and adds the headers of `HEADERS` to all answers."""

    def __init__(self, app: ASGIApp, rules: AccessRules) -> None:
        self.app, self.rules = app, rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # the server closes a connection that nobody accepts

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await (self._refusal(scope) or self.app)(scope, receive, guarded)

    @abstractmethod
    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """What answers instead of the application; None lets the request through."""


class AccessGate(RefusingGate):
    """The gate of the pages. login: the application that asks for the token."""

    def __init__(self, app: ASGIApp, rules: AccessRules, login: ASGIApp) -> None:
        super().__init__(app, rules)
        self.login = login

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """What answers instead of the application; None lets the request through."""
        headers = Headers(scope=scope)
        if not self.rules.is_host(headers.get("host", "")):
            return PlainTextResponse(
                "This server does not have the name in the address. Use one of its addresses, or start it with "
                "`stagedb serve --allow-host NAME`.\n",
                421,
            )
        scope[WRITER] = None if self.rules.writer is None else self.rules.is_writer(headers)
        if scope["method"] == "POST" and scope["path"].startswith(WRITING) and self.rules.writer is not None:
            return self._unwritten(headers, writer=bool(scope[WRITER]))
        allowed = ("GET", "HEAD", "POST") if scope["path"] == "/login" else ("GET", "HEAD")
        if scope["method"] not in allowed:
            text = f"This server only reads: {scope['method'][:20]} is not possible.\n"
            return PlainTextResponse(text, 405, headers={"allow": ", ".join(allowed)})
        if headers.get("sec-fetch-site") == "cross-site" and not _is_visit(headers):
            return PlainTextResponse("Another site asked for this, and only visits may come from there.\n", 403)
        if self.rules.token is None:
            return None
        words = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in words if name == "token"]
        if given and scope["path"] != "/login" and self.rules.is_token(given[0]):
            rest = urlencode([(name, value) for name, value in words if name != "token"])
            return self.rules.let_in(scope["path"] + (f"?{rest}" if rest else ""))
        if self.rules.is_known(headers) or scope["path"].startswith(FREE):
            return None
        return self.login

    def _unwritten(self, headers: Headers, *, writer: bool) -> ASGIApp | None:
        """Why a request to write is refused. A page of this server sends it, or a program that has the token itself."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is None and site is None:
            own = self.rules.is_writer_token(_bearer(headers))
        else:
            own = (origin is None or self._is_own(origin, headers)) and site in (None, "same-origin")
        if not own:
            return PlainTextResponse("Only a page of this server may ask it to write.\n", 403)
        if not writer:
            return PlainTextResponse("Writing needs the writers' token: /login takes it.\n", 403)
        if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            return PlainTextResponse(f"Requests to write have the form {FORM}.\n", 415)
        return None

    def _is_own(self, origin: str, headers: Headers) -> bool:
        """Whether an origin is this server: a proxy may have another scheme, but none takes HTTPS away."""
        try:
            found = urlsplit(origin)
        except ValueError:
            return False
        return found.netloc == headers.get("host") and (found.scheme == "https" or not self.rules.secure)


def local_path(text: str) -> str:
    """A path of this server, if a text is one; else the first page. A browser reads `//` and `/\\` as another host."""
    plain = text.isprintable() and text.startswith("/") and not text.startswith(("//", "/\\"))
    return text if plain else "/"


async def given_token(request: Request) -> tuple[str, str]:
    """The token of the form, and the path to go to. Only short forms are read."""
    words = await form_words(request, 10_000) or {}
    return words.get("token", "").strip(), words.get("to", "/")


async def form_words(request: Request, most: int = LARGEST_FORM) -> dict[str, str] | None:
    """The fields of a form by name; None if the form is longer than `most` bytes."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > most:
            return None
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def names_of(host: str, more: Iterable[str]) -> frozenset[str]:
    """Names by which browsers may call a server that listens on `host`. more: names that the user gives."""
    import socket

    names = {"localhost", host.lower(), *(name.rstrip(".").lower() for name in more)}
    if not is_loopback(host):
        names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
    return frozenset(names)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. host: a name or an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bearer(headers: Headers) -> str:
    """The token in an `Authorization` header; empty without one."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    return given.strip() if scheme.lower() == "bearer" else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_visit(headers: Headers) -> bool:
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


# The tokens of a server: that of readers from the environment, from a file, or made once and kept in a private file,
# and that of writers from the environment or a file alone.
#
# A token is never an argument of the program and in no log: other users of a machine can read both.

VARIABLE: Final = "STAGEDB_SERVE_TOKEN"
WRITER_VARIABLE: Final = "STAGEDB_SERVE_WRITER_TOKEN"
SHORTEST = 16
"""Characters of the shortest token: shorter ones can be guessed."""

WRITER_OPTION: Final = "--writer-token-file"

_LONGEST = 512
_FORM = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class FoundToken:
    """A token, and the place that it was read from, in words for a person who looks for it."""

    token: str = field(repr=False)
    source: str


def find_token(file: Path | None, environment: Mapping[str, str] | None = None) -> FoundToken:
    """The token of a file, of the environment, or of the file that is made for it, in this order.

    Raises UsageError for a token that is too short, or has characters that an address cannot have.
    """
    env = os.environ if environment is None else environment
    if file is not None:
        return FoundToken(_checked(_read(file), f"--token-file {file}"), str(file))
    if env.get(VARIABLE):
        return FoundToken(_checked(env[VARIABLE].strip(), VARIABLE), VARIABLE)
    kept = embedded_home(env) / "serve-token"
    if not kept.exists():
        _make(kept)
    return FoundToken(_checked(_read(kept), str(kept)), str(kept))


def find_writer_token(file: Path | None, environment: Mapping[str, str] | None = None) -> FoundToken | None:
    """The token of those who may write: of a file, or of the environment. None is made: without one nobody writes.

    Raises UsageError for a token that cannot be used, as that of readers.
    """
    env = os.environ if environment is None else environment
    if file is not None:
        return FoundToken(_checked(_read(file, WRITER_OPTION), f"{WRITER_OPTION} {file}"), str(file))
    if env.get(WRITER_VARIABLE):
        return FoundToken(_checked(env[WRITER_VARIABLE].strip(), WRITER_VARIABLE), WRITER_VARIABLE)
    return None


def _read(file: Path, option: str = "--token-file") -> str:
    return read_text(file, "token", option=option).strip()


def _make(file: Path) -> None:
    """Write a new token that only its owner can read. Another process may do so at the same time."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        raise UsageError(
            f"{file} cannot be written ({error.strerror}): name a file that has a token with --token-file, or set "
            f"{VARIABLE}"
        ) from None
    with os.fdopen(descriptor, "w", encoding="ascii") as out:
        out.write(secrets.token_urlsafe(32) + "\n")


def _checked(token: str, where: str) -> str:
    if not SHORTEST <= len(token) <= _LONGEST or not _FORM.fullmatch(token):
        raise UsageError(
            f"the token of {where} cannot be used: it needs {SHORTEST} to {_LONGEST} characters without spaces or "
            "accents (`openssl rand -hex 24` makes one)"
        )
    return token
