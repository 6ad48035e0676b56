"""By whose rules batches of a source topic are judged where nothing is mirrored: those of the flow's target topic."""

from __future__ import annotations

from typing import Final

from mirror.admin.client import Admin
from mirror.admin.topics import rules_from
from mirror.config import Settings
from mirror.errors import ClusterError
from mirror.policy.rules import Rules
from mirror.policy.selection import selects

DEFAULT_RULES: Final = "the mirror's default rules"


def rules_for(settings: Settings, topic: str) -> tuple[Rules, str]:
    """The rules of the flow's target topic, and whose they are; the default ones where it has none to give."""
    if not selects(topic, settings.topics):
        return Rules(), f"{DEFAULT_RULES}: the flow does not mirror {topic}"
    name = settings.topics.naming.target_of(topic)
    where = f"{name} on {settings.target.alias}"
    try:
        configs = Admin(settings.target).topic_configs([name]).get(name)
    except ClusterError as problem:
        return Rules(), f"{DEFAULT_RULES}: {where} cannot be read ({problem})"
    if configs is None:
        return Rules(), f"{DEFAULT_RULES}: {where} does not exist yet"
    return rules_from(configs, settings.topics), f"the rules of {where}"
