"""Attempts to write, to read files and to reach out through the tools: all fail, and the store stays as it is."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stagedb.agents.agent_tools import plan_words
from stagedb.agents.tool_calls import AGENT_TOOLS
from stagedb.api import Stagedb
from stagedb.api.model_names import card_source
from stagedb.errors import UsageError
from stagedb.models import load_card
from stagedb.plans.aspects import PLAN_WORDS
from stagedb.serve.shared_store import SharedStore
from stagedb.store import Store
from stagedb.store.failures import ReadOnlyError
from tests.agents.asking import agent_of
from tests.ir.tiny import card
from tests.serve.served import KeptOpen

CANARY = "canary-that-no-tool-opens"
SECRET = "what-is-in-the-file"

WRITES = (
    "CREATE (n:Graph) RETURN n",
    "MATCH (n) DETACH DELETE n",
    "MATCH (n:Instance) SET n.name = 'x' RETURN n",
    "MATCH (n:Instance) REMOVE n.name RETURN n",
    "MERGE (n:Tag {id: 'x'}) RETURN n",
    "MATCH (n:Instance) FOREACH (i IN [1] | CREATE (:Tag))",
    "MATCH (n:Instance) CALL { WITH n DELETE n } RETURN 1",
    "MATCH (n:Instance) CALL { WITH n SET n.x = 1 } IN TRANSACTIONS RETURN 1",
    "EXPLAIN CREATE (n)",
    "MATCH (n) RETURN n; MATCH (n) DELETE n",
    "ＣＲＥＡＴＥ (n) RETURN n",
    "\\u0043REATE (n) RETURN n",
    "MATCH (n:Instance) /* */ SET/**/ n.x = 1 RETURN n",
    "CREATE INDEX x FOR (n:Graph) ON (n.x)",
    "DROP CONSTRAINT graph_id",
    "INSERT (n:Graph)",
    "ALTER CURRENT USER SET PASSWORD FROM 'a' TO 'b'",
    "USE system MATCH (n) RETURN n",
)
"""Texts that write, or change what there is."""

REACHES = (
    "LOAD CSV FROM 'file:///{path}' AS row RETURN row",
    "LOAD CSV WITH HEADERS FROM 'http://127.0.0.1:1/x' AS row RETURN row",
    "CALL apoc.export.csv.all('{path}', {{}})",
    "CALL apoc.load.json('file://{path}') YIELD value RETURN value",
    "RETURN apoc.util.md5(['{path}'])",
    "CALL dbms.listConfig()",
    "CALL db.index.fulltext.queryNodes('x', 'y')",
    "{{`sql`: 'SELECT FROM Graph'}}",
)
"""Texts that reach out of the store."""

FILES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("profile", {"system": "{path}.yaml"}),
    ("profile", {"model": "{path}.yaml"}),
    ("profile", {"instance": "{path}.yaml"}),
    ("profile", {"plan": {"durations": "{path}.csv"}}),
    ("profile", {"durations": "{path}.csv"}),
    ("profile", {"plan": {"strategy": "{path}"}}),
    ("profile", {"plan": {"schedule": "{path}.yaml"}}),
    ("advise", {"plan": {"routing": "{path}.yaml"}}),
    ("advise", {"plan": {"expert_load": "{path}.json"}}),
    ("advise", {"plan": {"expert-load": "{path}.json"}}),
    ("advise", {"model": "{folder}"}),
    ("memory", {"system": "{path}.yaml", "out": "{path}"}),
    ("memory", {"model": "{path}"}),
    ("sweep", {"vary": {"system": ["{path}.yaml"]}}),
    ("sweep", {"vary": {"strategy": ["{path}"]}}),
    ("sweep", {"vary": {"schedule": ["{path}.csv"]}}),
    ("search", {"model": "{path}.yaml", "ranks": [2], "words": {"global_batch_size": 2}}),
    ("search", {"model": "gpt2", "ranks": [2], "systems": ["{path}.yaml"], "words": {"global_batch_size": 2}}),
    ("search", {"model": "gpt2", "ranks": [2], "words": {"global_batch_size": 2, "strategy": "{path}"}}),
    ("search", {"model": "gpt2", "ranks": [2], "words": {"global_batch_size": 2}, "on": "ray://127.0.0.1:1"}),
    ("models", {"like": "{path}.yaml"}),
    ("systems", {"name": "{path}.yaml"}),
    ("find", {"plan": {"strategy": "{path}"}}),
    ("query", {"name": "{path}"}),
    ("query", {"name": "../schema/mark"}),
    ("query", {"name": "MATCH (n) DELETE n"}),
    ("query", {"name": "hotspots", "params": {"profile": "{path}"}}),
    ("show", {"word": "{path}"}),
    ("report", {"word": "wide", "out": "{path}.html"}),
    ("replay", {"run": "{path}"}),
    ("export", {"target": "wide", "out": "{path}"}),
    ("rm", {"word": "wide", "force": True}),
    ("save_query", {"name": "mine", "text": "MATCH (n) RETURN n"}),
    ("import", {"paths": ["{path}.json"]}),
)
"""Calls that name files, or tools that write."""


class _Watch:
    """What this process opens and starts while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.found: list[str] = []

    def hook(self, event: str, details: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "open":
            path, mode, flags = details
            writes = (isinstance(mode, str) and bool(set(mode) & set("wxa+"))) or bool(int(flags or 0) & 3)
            if CANARY in str(path) or (writes and str(path) != "/dev/null"):
                self.found.append(f"open {path!r} {mode} {flags}")
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "subprocess.Popen", "os.system", "os.exec"):
            self.found.append(f"{event} {details!r}"[:300])


WATCH = _Watch()
sys.addaudithook(WATCH.hook)  # which stays until the process ends


@contextmanager
def watching() -> Iterator[list[str]]:
    """What this process opens for writing, starts or removes, and canaries that it opens."""
    WATCH.found.clear()
    WATCH.on = True
    try:
        yield WATCH.found
    finally:
        WATCH.on = False


def whole(store: Store) -> list[str]:
    """All nodes and edges of a store with their properties."""
    nodes = store.query("MATCH (n) RETURN labels(n) AS labels, properties(n) AS has", ranks=False).rows
    edges = store.query(
        "MATCH (a)-[r]->(b) RETURN type(r) AS type, a.id AS one, b.id AS other, properties(r) AS has", ranks=False
    ).rows
    return sorted(str([*row[:-1], sorted(map(str, dict(row[-1]).items()))]) for row in (*nodes, *edges))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The begin of the names of files with each ending that stagedb reads, each with a secret."""
    found = tmp_path / CANARY
    for ending in ("", ".yaml", ".json", ".csv", ".toml", ".html"):
        found.with_name(found.name + ending).write_text(f"{SECRET}: 1\n", encoding="utf-8")
    (tmp_path / "config.json").write_text(f'{{"{SECRET}": 1}}', encoding="utf-8")
    return found


def filled(value: Any, place: Path) -> Any:
    """Arguments with the place of the files."""
    if isinstance(value, str):
        return (
            value.replace("{path}", str(place))
            .replace("{folder}", str(place.parent))
            .replace("{{", "{")
            .replace("}}", "}")
        )
    if isinstance(value, dict):
        return {key: filled(each, place) for key, each in value.items()}
    return [filled(each, place) for each in value] if isinstance(value, list) else value


def test_nothing_is_written_and_no_file_is_read(store: Store, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Stagedb(store).instantiate(card("llama"), name="wide", tp=2)
    agent, before = agent_of(store), whole(store)
    monkeypatch.chdir(place.parent)  # a name without a folder would find the files too
    attempts = [("cypher", {"query": text}) for text in (*WRITES, *REACHES)] + list(FILES)
    attempts += [(name, filled(arguments, Path(CANARY))) for name, arguments in FILES]
    assert len(attempts) > 40
    files = {path: path.read_text(encoding="utf-8") for path in place.parent.iterdir()}
    agent.call("ls")  # what is imported and opened once
    with watching() as seen:
        answers = agent.calls(*((name, filled(arguments, place)) for name, arguments in attempts))
    for attempt, answer in zip(attempts, answers, strict=True):
        assert answer.failed, (attempt, answer.text)
        assert SECRET not in answer.text, attempt
        assert "itself failed" not in answer.text, attempt
    assert seen == []
    assert whole(store) == before
    assert {path: path.read_text(encoding="utf-8") for path in place.parent.iterdir()} == files


def _planned(words: dict[str, Any]) -> None:
    """Make the plan of a model from words, or refuse it."""
    with suppress(UsageError):
        card_source(load_card("gpt2"), words).new_plan({"seq_len": 8, **words})


def _plan_of_an_agent(words: dict[str, Any]) -> None:
    with suppress(UsageError):
        _planned(plan_words(words))


@pytest.mark.parametrize("word", PLAN_WORDS)
def test_no_word_of_a_plan_reads_a_file(word: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of words that are added later."""
    monkeypatch.chdir(place.parent)
    for value in (str(place), f"{place}.yaml", f"{place}.csv", CANARY, f"{CANARY}.json"):
        with watching() as seen:
            _plan_of_an_agent({word: value})
        assert seen == [], (word, value)


def test_the_words_of_a_command_read_files(place: Path) -> None:
    """So that the test above can fail."""
    for word, ending in (("strategy", ""), ("schedule", ".yaml"), ("routing", ".yaml"), ("expert_load", ".yaml")):
        with watching() as seen:
            _planned({word: f"{place}{ending}"})
        assert CANARY in str(seen), word


def test_the_connection_refuses_writes_of_any_tool(store: Store) -> None:
    """Even if a tool called a verb that writes."""
    shared = SharedStore(lambda: KeptOpen(store))
    with pytest.raises(ReadOnlyError, match="only reads"):
        shared.read(lambda db: db.instantiate(card("llama"), tp=2))


def test_tools_have_no_argument_for_a_path() -> None:
    for tool in AGENT_TOOLS.values():
        assert not {"path", "file", "out", "output", "directory"} & tool.schema()["properties"].keys()
