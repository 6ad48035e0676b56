"""A configuration that is read again while the mirror runs: what changes now, and what needs a new start (pure)."""

from __future__ import annotations

from typing import Final, NamedTuple

from mirror.config.models import Settings

#: What a running mirror takes over, section by section.
LIVE: Final = ("topics", "groups", "sync", "limits")
#: Of the topics, what holds for the life of a mirror.
FIXED: Final = ("offsets", "rules")


class Reloaded(NamedTuple):
    """The settings that hold from now on; the sections that changed; the keys that changed in vain until a restart."""

    settings: Settings
    changed: tuple[str, ...]
    in_vain: tuple[str, ...]


def reloaded(old: Settings, new: Settings) -> Reloaded:
    """Take over from `new` what can change while running."""
    topics = new.topics.model_copy(update={name: getattr(old.topics, name) for name in FIXED})
    live = {"topics": topics, "groups": new.groups, "sync": new.sync, "limits": new.limits}
    in_vain = [name for name in Settings.model_fields if name not in LIVE and getattr(old, name) != getattr(new, name)]
    in_vain += [f"topics.{name}" for name in FIXED if getattr(new.topics, name) != getattr(old.topics, name)]
    changed = tuple(name for name, section in live.items() if getattr(old, name) != section)
    return Reloaded(old.model_copy(update=live), changed, tuple(in_vain))
