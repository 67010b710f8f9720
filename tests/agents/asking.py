"""The tools of a store, asked with the client of the protocol's own package."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
from mcp import Client
from mcp_types import CallToolResult, TextContent, Tool

from stagedb.agents import AnswerLimits
from stagedb.agents.tool_calls import ToolCalls
from stagedb.agents.transports import tool_server
from stagedb.serve.shared_store import SharedStore
from stagedb.store import Store
from tests.serve.served import KeptOpen


@dataclass(frozen=True)
class ToolReply:
    """What a tool returned: its text, and whether it is an error."""

    text: str
    failed: bool

    @property
    def content(self) -> dict[str, Any]:
        """The answer."""
        assert not self.failed, self.text
        found: dict[str, Any] = json.loads(self.text)
        return found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows of the answer."""
        return rows_of(self.content)

    @property
    def error(self) -> str:
        """The text of the error."""
        assert self.failed, self.text
        return self.text


def rows_of(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(table["columns"], row, strict=True)) for row in table["rows"]]


def reply_of(result: CallToolResult) -> ToolReply:
    (content,) = result.content
    assert isinstance(content, TextContent)
    return ToolReply(content.text, bool(result.is_error))


@dataclass(frozen=True)
class Agent:
    """An agent with the tools of a store."""

    opened: Callable[[], Any]

    def call(self, name: str, /, **arguments: Any) -> ToolReply:
        """The answer of a tool."""
        return self.calls((name, arguments))[0]

    def calls(self, *several: tuple[str, dict[str, Any]]) -> list[ToolReply]:
        """The answers of several calls of one client."""

        async def ask() -> list[ToolReply]:
            async with Client(self.opened()) as client:
                return [reply_of(await client.call_tool(name, arguments)) for name, arguments in several]

        return anyio.run(ask)

    def tools(self) -> list[Tool]:
        """The tools that the server lists."""

        async def ask() -> list[Tool]:
            async with Client(self.opened()) as client:
                return (await client.list_tools()).tools

        return anyio.run(ask)


def agent_of(store: Store, limits: AnswerLimits | None = None) -> Agent:
    """An agent with the tools of a store, which is in this process."""
    chosen = limits or AnswerLimits()
    return Agent(lambda: tool_server(ToolCalls(SharedStore(lambda: KeptOpen(store)), chosen)))
