"""Which requests over HTTP reach the tools: those to a name of this machine, from no other site, with the token.

An agent has no cookies and visits no pages: the token comes in a header, and what only browsers send is refused.
"""

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Scope

from stagedb.serve.access import RefusingGate

PATH: Final = "/mcp"
"""The path of the tools."""


class RequestGate(RefusingGate):
    """The gate that refuses all other requests. rules: as of `stagedb serve`."""

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """What answers instead of the tools; None lets the request through."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self.rules.is_host(host):
            text = "This server does not have the name in the address: `stagedb mcp --allow-host NAME` gives it one.\n"
            return PlainTextResponse(text, 421)
        origin = headers.get("origin")
        another = origin is not None and urlsplit(origin).netloc != host
        if another or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return PlainTextResponse("Another site asked for this, and this server answers none.\n", 403)
        if not self.rules.has_token(headers):
            text = "This server needs a token, in the header `Authorization: Bearer TOKEN`.\n"
            return PlainTextResponse(text, 401, headers={"www-authenticate": "Bearer"})
        if scope["path"] != PATH:
            return PlainTextResponse(f"The tools are at {PATH}.\n", 404)
        if scope["method"] != "POST":
            return PlainTextResponse("Calls of tools are POST requests.\n", 405, headers={"allow": "POST"})
        return None
