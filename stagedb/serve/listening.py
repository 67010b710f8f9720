"""The server: where it listens, and how it ends."""

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from starlette.types import ASGIApp

from stagedb.errors import UsageError
from stagedb.files import is_there
from stagedb.serve.access import AccessRules, find_token, is_loopback, names_of


@dataclass(frozen=True)
class Listening:
    """Where a server listens, and for whom.

    port: 0 for a free one. token: whether one is needed; None: unless only this machine can reach the address.
    token_file: a file with the token. allow: further names of this machine in addresses. certificate, key: files for
    HTTPS.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    token: bool | None = None
    token_file: Path | None = None
    allow: Sequence[str] = ()
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class ServedAt:
    """Where a server can be reached. token: None if none is needed; source: where the token is kept."""

    address: str
    token: str | None = field(repr=False)
    source: str | None


def listen(application: Callable[[AccessRules], ASGIApp], wanted: Listening, ready: Callable[[ServedAt], None]) -> None:
    """Serve an application until the process is interrupted. ready: called once, when the address is known.

    application: called with who may reach it. Raises UsageError for an address that cannot be used.
    """
    import uvicorn

    if (wanted.certificate is None) != (wanted.key is None):
        raise UsageError("HTTPS needs both --certificate and --key")
    for file, option in ((wanted.certificate, "--certificate"), (wanted.key, "--key")):
        if file is not None and not is_there(file):
            raise UsageError(f"there is no file {file}: name the one for HTTPS with {option}")
    needed = not is_loopback(wanted.host) if wanted.token is None else wanted.token
    found = find_token(wanted.token_file) if needed or wanted.token_file is not None else None
    opened = bound(wanted.host, wanted.port)
    try:
        token = None if found is None else found.token
        rules = AccessRules(token, names_of(wanted.host, wanted.allow), secure=wanted.certificate is not None)
        settings = uvicorn.Config(
            application(rules),
            log_level="warning",
            access_log=False,  # an address can have a token, and the text of a query
            server_header=False,
            timeout_graceful_shutdown=5,
            ssl_certfile=wanted.certificate,
            ssl_keyfile=wanted.key,
        )
        settings.load()  # a certificate that cannot be used is found before the address is shown
        host, port = opened.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        scheme = "http" if wanted.certificate is None else "https"
        ready(ServedAt(f"{scheme}://{name}:{port}/", token, None if found is None else found.source))
        uvicorn.Server(settings).run(sockets=[opened])
    except OSError as error:
        raise UsageError(f"the certificate or the key cannot be used: {error}") from None
    finally:
        opened.close()


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens.

    host: a name or an address. port: 0: any that is free. Raises UsageError if the address is taken, or is none of this
    machine.
    """
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError):
        raise UsageError(f"{host} is no address of this machine: --host takes one, such as 127.0.0.1") from None
    opened = socket.socket(family, socket.SOCK_STREAM)
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(place)
        opened.listen(256)
    except OSError as error:
        opened.close()
        raise UsageError(
            f"cannot listen on {host}, port {port} ({error.strerror}): name another with --host and --port; port 0 "
            "takes a free one"
        ) from None
    return opened
