"""Administration that remembers topics, for whoever reads a cluster every few seconds.

To describe a thousand topics with their configs takes a broker seconds, and one request for all metadata a tenth of
one: it shows which topics are new, gone or have grown.

    - Those are described when they are asked for, before anything else.
    - The others are described again in turns, some at each round and all within `AGAIN_SECONDS` or longer, so that
      other configs and topics made anew are seen; a cluster with `AT_ONCE` topics or fewer is described whole each
      time.
    - What was changed from here is not remembered, nor what is asked for right before a change.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from mirror import clock
from mirror.config import ClusterSettings
from mirror.errors import MirrorError
from mirror.kafka.admin import AT_ONCE, Admin, TopicInfo, portions
from mirror.kafka.topic_configs import ConfigChange, ConfigValue

#: Seconds from one description of all topics to the next, of a cluster that is not described whole each time.
AGAIN_SECONDS: Final = 30.0


class RememberingAdmin(Admin):
    """`topics` and `topic_configs` answer from what was known at the last `refresh`."""

    def __init__(self, settings: ClusterSettings) -> None:
        """As `Admin` does."""
        super().__init__(settings)
        self._topics: dict[str, TopicInfo] = {}
        self._configs: dict[str, dict[str, ConfigValue]] = {}
        self._due: list[str] = []
        self._again_at = float("-inf")  # when all are due again (monotonic)
        self._had_others = False

    def refresh(self, seconds: float) -> bool:
        """Learn what is new, and describe for about so long some of what is not. True where something is other than
        before, or everything has been described again since the last time that it was.
        """
        counts = self.partition_counts()
        known = {name: len(topic.partitions) for name, topic in self._topics.items()}
        others = {name for name, _ in counts.items() ^ known.items()}
        for name in others:
            self._topics.pop(name, None)
            self._configs.pop(name, None)
        self._topics |= self.describe(sorted(others & counts.keys()))
        if others and not self._had_others:  # they do not wait, and in the long run they do not keep the rest waiting
            self._had_others = True
            return True
        self._had_others = False
        return self._describe_again(seconds) or bool(others)

    def _describe_again(self, seconds: float) -> bool:
        began, is_other = clock.monotonic(), False
        if not self._due:
            if len(self._configs) > AT_ONCE and began < self._again_at:
                return False
            self._due, self._again_at = sorted(self._configs), began + AGAIN_SECONDS
        while self._due:
            some = [name for name in self._due[:AT_ONCE] if name in self._configs]
            topics, configs = self.describe(some), super().topic_configs(some, {})
            for name in some:
                is_other |= (topics.get(name), configs.get(name)) != (self._topics.get(name), self._configs[name])
                self._topics.pop(name, None)
                del self._configs[name]
            self._topics |= topics
            self._configs |= configs
            self._due = self._due[AT_ONCE:]
            if clock.monotonic() - began > seconds:
                break
        return is_other or not self._due

    def topics(self) -> dict[str, TopicInfo]:
        """Every topic that was there."""
        return dict(sorted(self._topics.items()))

    def topic_configs(
        self, names: Iterable[str], denied: dict[str, MirrorError] | None = None
    ) -> dict[str, dict[str, ConfigValue]]:
        """What is not remembered of them is asked for."""
        wanted = list(names)
        unknown = (name for name in wanted if name not in self._configs)
        for some in portions(unknown, lambda _: 1, AT_ONCE):  # each within the deadline of a request
            self._configs |= super().topic_configs(some, denied)
        return {name: self._configs[name] for name in wanted if name in self._configs}

    def topic_configs_now(self, names: Iterable[str]) -> dict[str, dict[str, ConfigValue]]:
        """As `Admin` does; they are remembered from then on."""
        wanted = list(names)
        self._forget(wanted)
        found = super().topic_configs_now(wanted)
        self._configs |= found
        return found

    def alter_configs(
        self,
        changes: Iterable[ConfigChange],
        failures: dict[str, MirrorError] | None = None,
        ids: Mapping[str, uuid.UUID | None] = MappingProxyType({}),
    ) -> None:
        """As `Admin` does."""
        changing = list(changes)
        try:
            super().alter_configs(changing, failures, ids)
        finally:
            self._forget(change.topic for change in changing)

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            self._configs.pop(name, None)
