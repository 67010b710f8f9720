"""How the tokens of a row reach their experts, where its framework chooses by the network."""

from collections.abc import Mapping
from typing import Any

from stagedb.frameworks.profiles import FrameworkProfile
from stagedb.systems import System

NODE = 8
"""The accelerators of a node of an HGX. An NVLink domain with more spans several nodes."""


def dispatch_words(profile: FrameworkProfile, words: Mapping[str, Any], system: System) -> dict[str, Any]:
    """The words of a plan for the exchange of tokens, where a framework chooses it.

    words: the plan's words. The ranks of ep are next to each other among those of tp, if these hold whole experts, else
    among those of cp and dp. An exchange that stays in a node is Megatron-Core's all-to-all of choices.
    """
    ep, tp = words.get("ep") or 1, words.get("tp") or 1
    if not profile.sends_once or ep == 1 or words.get("dispatch") or words.get("capacity_factor"):
        return {}
    domain = system.dimensions[0].use or system.dimensions[0].size or 1
    apart = 1 if words.get("expert_tp") is False else tp
    near = domain // apart
    if ep <= near:
        return {"dispatch": "ranks"} if domain > NODE else {}
    if near > 1 and ep % near == 0:
        return {"dispatch": "nodes", "node_ranks": near}
    return {"dispatch": "ranks"}
