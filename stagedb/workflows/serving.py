"""Serving: forwards of requests, whose keys and values stay in a cache, and the tokens that follow their last ones."""

from stagedb.workflows.training import FORWARD_TASK
from stagedb.workflows.workflow import Workflow

PREFILL = Workflow(
    "prefill",
    "a forward of new tokens of requests, whose keys a cache keeps",
    (FORWARD_TASK,),
    caches=True,
)
MIXED = Workflow(
    "mixed",
    "a forward of new tokens of some requests, with one token of each of others",
    (FORWARD_TASK,),
    caches=True,
    mixes=True,
)
DECODE = Workflow(
    "decode",
    "a forward of one token of each request over its cache",
    (FORWARD_TASK,),
    caches=True,
    next_token=True,
)
SPECULATIVE = Workflow(
    "speculative",
    "a forward of the last token of each request and of a draft behind it, which it checks",
    (FORWARD_TASK,),
    caches=True,
    drafts=True,
)
