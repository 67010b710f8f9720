"""Labels and relationships of working together: names, tags, notes, who made what from what, saved queries.

They point to graphs, instances, profiles, searches and runs, which do not change when one of these does.
"""

from stagedb.store.schema_forms import Label, Property, Relationship, id_of

_TIME = Property("time", "integer", "when", "ms since 1970")

_ORIGIN = Property(
    "origin",
    "string?",
    "if it came with a dump: who loaded it, from which file; user and time are then what the dump claims",
)

TEAM_LABELS = (
    Label(
        "User",
        "Somebody who works with the store: the account, or what `STAGEDB_USER` names.",
        (id_of("the user's name"),),
        style=("#4c8eda", "id"),
    ),
    Label(
        "Name",
        "A name of an instance, a profile or a run, in the space of a user or of a team. It can be moved.",
        (
            id_of("kind, `:`, space, `/`, name"),
            Property("kind", "string", "what it names: instance, profile or run"),
            Property("space", "string", "the user or the team whose name it is"),
            Property("name", "string", "the name, unique in the space for its kind"),
            Property("user", "string", "the user who set it last"),
            _TIME,
            _ORIGIN,
        ),
        indexes=(("name",),),
        style=("#ffc454", "name"),
    ),
    Label(
        "Tag",
        "A word that graphs, instances, profiles, searches and runs are tagged with.",
        (id_of("the word"),),
        style=("#b3aed6", "id"),
    ),
    Label(
        "Note",
        "A remark about a graph, an instance, a profile, a search or a run.",
        (id_of("unique in the store"), Property("text", "string", "the remark"), _TIME, _ORIGIN),
        style=("#d9c8ae", "text"),
    ),
    Label(
        "Event",
        "Something that changed the store: who did what, when, with which command. It stays when its thing is removed.",
        (
            id_of("unique in the store"),
            _TIME,
            Property("action", "string", "made, removed, named, unnamed, tagged, untagged, noted, saved, forgot …"),
            Property("kind", "string", "of what: graph, instance, profile, search, run or query"),
            Property("thing", "string", "the id of that, or the name of a query"),
            Property("detail", "string?", "the name, the tag, the model or the system"),
            Property("version", "string", "version of stagedb"),
            Property("schema", "integer", "version of the schema that it wrote"),
            Property("command", "string", "the command line, or the program that used the Python API"),
            Property("process", "string?", "machine, number and start of the process"),
        ),
        indexes=(("time",), ("thing",)),
        style=("#c990c0", "action"),
    ),
    Label(
        "Input",
        "Something that a graph, an instance, a profile, a search or a run was made from.",
        (
            id_of("digest of its content"),
            Property("kind", "string", "card, options, graph, plan, instance, system, durations, trace, or dump"),
            Property("name", "string?", "its name: the model's, the system's, the file's"),
        ),
        style=("#57c7e3", "name"),
    ),
    Label(
        "SavedQuery",
        "A query that somebody saved for the team, with the header that named queries have.",
        (
            id_of("the space, `/`, and the name"),
            Property("space", "string", "the user or the team whose query it is"),
            Property("name", "string", "its name"),
            Property("text", "string", "the header and the Cypher"),
            Property("user", "string", "the user who saved it last"),
            _TIME,
            _ORIGIN,
        ),
        style=("#f79767", "name"),
    ),
    Label(
        "Job",
        "An export, an import, a search or a profile that a command makes, and how far it is. One whose process was "
        "killed, or gave no sign of life for a minute, was lost. The newest 200 are kept; dumps have none.",
        (
            id_of("unique in the store"),
            Property("kind", "string", "export, import, search or profile"),
            Property("what", "string", "what the user named: a model, an instance, a run"),
            Property("host", "string", "the machine's name"),
            Property("user", "string", "the user"),
            Property("started", "integer", "when it was first written", "ms since 1970"),
            Property("updated", "integer", "its last sign of life", "ms since 1970"),
            Property("done", "integer?", "how much is done; absent before the first report"),
            Property("of", "integer?", "of how much"),
            Property("unit", "string", "what these count: ranks, bytes, plans, rows"),
            Property("detail", "string?", "what it does, or the best plan that it has found"),
            Property("state", "string", "running, done or failed"),
            Property("owner", "string?", "the process that runs it: machine, number, when it began, and the user"),
        ),
        style=("#569480", "kind"),
    ),
)

_TAGGED = (
    Property("user", "string?", "the user who tagged it"),
    Property("time", "integer?", "when", "ms since 1970"),
    _ORIGIN,
)
_MADE = ("Graph", "Instance", "Profile", "Search", "Run")
NAMED_LABELS = ("Instance", "Profile", "Run")
"""Labels whose nodes users can give names to."""

TEAM_RELATIONSHIPS = (
    *(Relationship("NAMES", "Name", label, "What the name means now.") for label in NAMED_LABELS),
    *(
        Relationship(
            "ASKED_FOR",
            "User",
            label,
            "The user asked for what was there already; it counts as the newest of this user from then on.",
            (_TIME,),
        )
        for label in NAMED_LABELS
    ),
    *(
        Relationship(
            "TAGS",
            "Tag",
            label,
            "It has this tag.",
            _TAGGED,
        )
        for label in _MADE
    ),
    *(Relationship("ABOUT", "Note", label, "What the remark is about.") for label in _MADE),
    Relationship("DONE_BY", "Note", "User", "Who wrote it; by the claim of a dump, if the note has `origin`."),
    *(Relationship("MADE", "Event", label, "What was made.") for label in _MADE),
    Relationship("DONE_BY", "Event", "User", "Who did it."),
    Relationship("USED", "Event", "Input", "What the thing was made from."),
    *(
        Relationship("WORKS_ON", "Job", label, "What it made or read, from the end of the job on.")
        for label in _MADE
        if label != "Graph"
    ),
)
