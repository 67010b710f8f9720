"""How agents reach the tools: over the standard streams of a process that they start, or over HTTP."""

from collections.abc import Callable

import anyio
from mcp.server.stdio import stdio_server
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from stagedb.agents.bounded_answers import AnswerLimits
from stagedb.agents.request_gate import PATH, RequestGate
from stagedb.agents.tool_calls import ToolCalls
from stagedb.agents.tool_server import tool_server
from stagedb.api import Stagedb
from stagedb.serve.access import AccessRules
from stagedb.serve.listening import Listening, ServedAt, listen
from stagedb.serve.shared_store import SharedStore

MOST_REQUEST = 256 * 1024
"""Bytes of a request."""


def serve_over_stdio(connect: Callable[[], Stagedb], limits: AnswerLimits) -> None:
    """Answer calls on standard input with lines on standard output, until the input ends.

    While it runs, what prints goes to standard error, and what reads finds nothing. connect: opens the store. limits:
    of answers.
    """
    shared = SharedStore(connect)
    server = tool_server(ToolCalls(shared, limits))

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    try:
        anyio.run(run)
    finally:
        shared.close()


def tools_application(shared: SharedStore, rules: AccessRules, limits: AnswerLimits) -> ASGIApp:
    """The tools as an application of the web. Each request has all that it needs: the server keeps no sessions."""
    # The gate checks the names of hosts and sites, by the rules of `stagedb serve`.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = tool_server(ToolCalls(shared, limits)).streamable_http_app(
        streamable_http_path=PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=MOST_REQUEST,
        transport_security=unchecked,
    )
    return RequestGate(app, rules)


def serve_over_http(
    connect: Callable[[], Stagedb], limits: AnswerLimits, wanted: Listening, ready: Callable[[ServedAt], None]
) -> None:
    """Answer calls over HTTP until the process is interrupted. ready: called once, when the address is known.

    connect: opens the store. Raises UsageError for an address that cannot be used.
    """
    shared = SharedStore(connect)
    try:
        listen(lambda rules: tools_application(shared, rules, limits), wanted, ready)
    finally:
        shared.close()
