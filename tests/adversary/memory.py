"""What a player knows of a flow: both sides as they were read, what was done to them, and what that allows."""

from __future__ import annotations

import shutil
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from confluent_kafka import KafkaException
from helpers import config_file

from .driving import Command
from .journal import Recorded, found_in
from .judging import Allowed, Finding, text_of
from .logs import Log, Reader, Record, Topic
from .operations import TOPIC_CONFIGS, Op, Schedule
from .world import SIDES, Side, World

#: How long anything may take on a machine with far too much to do.
TIMEOUT_S: Final = 180.0
#: How long a task lives: what is done to a copy that nothing is written to is found when the next one begins.
EPOCH_SECONDS: Final = 2.0
#: The same of tasks that outlive a schedule.
LASTING_SECONDS: Final = 600.0
#: The same of a bounded run, which gives up after two in which nothing went on.
ONCE_SECONDS: Final = 15.0
#: Settings by which records of a month ago expire.
EXPIRING: Final = frozenset({"default", "week", "segments"})
S = TypeVar("S")


@dataclass(slots=True)
class Played(Generic[S]):
    """How a schedule went.

    steps: what was done, a line each.
    findings: what must not be.
    failure: what went wrong with the adversary itself.
    """

    schedule: S
    steps: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    failure: str = ""
    logs: str = ""

    @property
    def kinds(self) -> list[str]:
        """Return the kinds of the findings."""
        return sorted({finding.kind for finding in self.findings})

    def add(self, invariant: str, what: str, detail: str) -> None:
        """Note a finding."""
        self.findings.append(Finding(invariant, what, detail))

    def __str__(self) -> str:
        lines = [f"{self.schedule}: {self.seconds:.1f} s", *(f"    {step}" for step in self.steps)]
        lines += [f"  ! {finding}" for finding in self.findings]
        return "\n".join(lines + ([self.failure] if self.failure else []))


@dataclass(slots=True)
class Copy:
    """What is known of one topic on the target.

    source: the number of its source topic.
    owned: the flow made it, or took it over while it was empty.
    source_id: the id of the source topic that it is a copy of.
    causes: what was done to it and to its source.
    start: by partition, up to where its records may be gone; None: anywhere.
    standing: stops, by partition.
    confirmed: by partition, up to where a person took records of somebody else for the source's.
    resolved_at: when a person last resolved its stops, by the monotonic clock.
    others: it holds records that somebody else wrote while its source was there.
    kept: what was done to its source since must not reach it.
    own_times: the target's broker dates its records.
    """

    source: int
    owned: bool
    source_id: UUID | None = None
    causes: set[str] = field(default_factory=set)
    start: dict[int, int | None] = field(default_factory=dict)
    standing: dict[int, str] = field(default_factory=dict)
    confirmed: dict[int, int] = field(default_factory=dict)
    resolved_at: float = float("-inf")
    others: bool = False
    kept: bool = False
    own_times: bool = False
    compacted: bool = False
    expires: bool = False

    def resolve(self) -> None:
        """A person resolved its stops."""
        self.standing.clear()
        self.resolved_at = time.monotonic()


class Player(Generic[S]):
    """One flow on two clusters, and the commands that are run for it. `timeout_s`: as of `play.play`."""

    def __init__(self, world: World, played: Played[S], timeout_s: float) -> None:
        self._world, self._played, self._timeout_s = world, played, timeout_s
        self._found = played.add
        self._tag = f"x{uuid.uuid4().hex[:7]}"
        self._journal = f"mirror.{self._tag}.offsets"
        self._folder = world.folder / self._tag
        self._folder.mkdir()
        self._readers = {side: Reader(world.sides[side].bootstrap) for side in SIDES}

    def _recorded(self, flow: str = "") -> Recorded:
        """Return what the journal of the flow, or of another one, says."""
        return found_in(self._readers["target"].entries(f"mirror.{flow or self._tag}.offsets"))

    def _command(self, *arguments: str) -> tuple[int | None, Command]:
        """Run a command to its end, and judge how it ended."""
        command = Command(self._folder, *arguments)
        return self._end(command), command

    def _end(self, command: Command, number: signal.Signals | None = None) -> int | None:
        """Send a command a signal, wait for its end, and judge how it ended; None where it does not."""
        if number is not None:
            command.send(number)
        code = command.wait(TIMEOUT_S)
        said = f"mirror {' '.join(text for text in command.arguments if not text.startswith('/'))}"
        if code is None:
            command.end()
            self._found("I7", "a command hangs", f"{said}: {command.logged[-1500:]}")
        elif code == 1 or code < 0:
            self._found("I9", "a command ended with a bug", f"{said}: exit {code}: {command.logged[-2500:]}")
        return code

    def clear(self) -> None:
        """Delete what was made."""
        for side in self._world.sides.values():
            with suppress(KafkaException):
                side.forget([name for name in side.admin.list_topics(timeout=10).topics if self._tag in name])
        shutil.rmtree(self._folder, ignore_errors=True)


class Memory(Player[Schedule]):
    """What is known of the topics of a schedule; the base of all that plays and judges it."""

    def __init__(self, world: World, schedule: Schedule, played: Played[Schedule], timeout_s: float) -> None:
        super().__init__(world, played, timeout_s)
        self._schedule, self._group = schedule, f"{self._tag}.g"
        self._epoch_seconds = LASTING_SECONDS if schedule.lasts else EPOCH_SECONDS
        #: The number of the operation.
        self._place = 0
        #: Mirrors that run.
        self._live: list[Command] = []
        self._failed_over = self._skips_damage = False
        self._flow_causes, self._paused = set[str](), set[str]()
        #: By target topic, the operation that accepted what stopped it.
        self._promised: dict[str, int] = {}

        # --- the source topics, by name
        self._names = [f"{self._tag}.{letter}" for letter in "abc"[: len(schedule.created)]]
        self._source: dict[str, Topic] = {}
        self._source_configs = dict(zip(self._names, schedule.created, strict=True))
        self._source_causes: dict[str, set[str]] = {name: set() for name in self._names}
        #: By place and offset, what the source held last, and what it held before that.
        self._history: dict[tuple[str, int], dict[int, Record]] = {}
        self._former: dict[tuple[str, int], dict[int, set[Record]]] = {}
        #: By the number of the operation that made a topic anew, its settings before: they may be on their way.
        self._former_settings: dict[tuple[int, int], Mapping[str, str]] = {}
        #: By the id of the source topic (of a former one, a commit may be due), up to where the group has read.
        self._read: dict[tuple[UUID | None, int], int] = {}

        # --- the target topics, by name
        self._target: dict[str, Topic] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._groups: dict[tuple[str, int], int] = {}
        self._baseline: tuple[dict[str, Topic], dict[str, dict[str, str]], dict[tuple[str, int], int]] = ({}, {}, {})
        self._copies: dict[str, Copy] = {}
        self._strangers = set[str]()
        #: By the topic's id, all records that were ever seen.
        self._copied: dict[tuple[UUID | None, int], dict[int, set[Record]]] = {}
        self._deleted_settings: dict[str, dict[str, str]] = {}
        #: Since the last judgment: from where on logs were cut, and whether records were deleted.
        self._cut_from: dict[tuple[str, int], int] = {}
        self._expired = False
        #: When something was last done that a live mirror finds with its next task; and that it need not find at all.
        self._disturbed_at, self._is_unseen = 0.0, False

        # --- both sides
        self._damaged: dict[Side, dict[tuple[str, int], set[tuple[int, int]]]] = {side: {} for side in SIDES}
        self._crashes = dict(world.crashes)

    # --- reads --------------------------------------------------------------------------------------------------------

    def _read_logs(self) -> None:
        """Read both sides anew, and keep what they hold."""
        self._source = self._readers["source"].topics(self._names)
        self._target = self._readers["target"].topics(sorted({*self._names} | self._strangers))
        self._configs = {name: self._world.target.configs(name) for name in self._target}
        for name, topic in self._source.items():
            for partition, log in topic.partitions.items():
                held = self._history.setdefault((name, partition), {})
                former = self._former.setdefault((name, partition), {})
                for offset in [offset for offset in held if offset >= log.start]:
                    former.setdefault(offset, set()).add(held.pop(offset))
                held.update(log.records)
        for topic in self._target.values():
            for partition, log in topic.partitions.items():
                copied = self._copied.setdefault((topic.id, partition), {})
                for offset, record in log.records.items():
                    copied.setdefault(offset, set()).add(record)
        places = [(name, number) for name, topic in self._target.items() for number in topic.partitions]
        self._groups = self._world.target.committed(self._group, places)

    def _read_again(self) -> None:
        """Read besides the one time with which each operation ends."""
        self._read_logs()
        for name in self._target:
            self._adopt_new(name)

    def _rebase(self) -> None:
        """Take what is on the target now for the work of somebody else."""
        self._read_logs()
        self._baseline = self._target, self._configs, self._groups

    # --- topics -------------------------------------------------------------------------------------------------------

    def _kind(self, number: int) -> str:
        return self._source_configs[self._names[number]]

    def _source_id(self, number: int) -> UUID | None:
        topic = self._source.get(self._names[number])
        return topic.id if topic else None

    def _is_of_now(self, copy: Copy) -> bool:
        """Whether it is the copy of the source topic that there is."""
        return copy.source_id == self._source_id(copy.source)

    def _ages(self, number: int) -> bool:
        """Whether a topic holds records that its settings delete by their age."""
        has_old = "old" in self._source_causes[self._names[number]]
        return self._kind(number) == "short" or (has_old and self._kind(number) in EXPIRING)

    def _owner(self, copy: Copy) -> str:
        if not copy.owned:
            return "not the flow's"
        if copy.kept:
            return "the flow's, with records of somebody else"
        return "the flow's" if self._is_of_now(copy) else "the flow's, of a topic that was deleted since"

    def _adopt_new(self, name: str) -> None:
        """Know a copy that appeared on the target."""
        if name not in self._copies or "target deleted" in self._copies[name].causes:
            number = self._names.index(name) if name in self._names else 0
            deleted_at = time.monotonic() if name in self._copies else float("-inf")
            self._copies[name] = Copy(number, owned=True, source_id=self._source_id(number), resolved_at=deleted_at)
            self._follow_source(self._copies[name])

    def _follow_source(self, copy: Copy) -> None:
        """Let a copy have the settings of the source topic that there is now."""
        copy.causes |= self._source_causes[self._names[copy.source]] & {"source expired"}
        copy.expires |= self._ages(copy.source)
        copy.compacted |= self._kind(copy.source) == "compact"
        copy.own_times |= self._kind(copy.source) == "append"

    def _pairs(self) -> Iterator[tuple[str, int, Log, Log | None, Copy | None]]:
        """Give each source topic and partition, its log, and what there is of its copy."""
        for name, topic in self._source.items():
            copy = self._target.get(name)
            for partition, log in topic.partitions.items():
                yield name, partition, log, copy.partitions.get(partition) if copy else None, self._copies.get(name)

    def _source_log(self, op: Op) -> tuple[str, int, Log] | None:
        name = self._names[op.topic]
        if (topic := self._source.get(name)) is None:
            return None
        partition = op.partition % len(topic.partitions)
        return name, partition, topic.partitions[partition]

    def _target_log(self, op: Op) -> tuple[str, int, Log, Copy] | None:
        name = self._names[op.topic]
        topic, copy = self._target.get(name), self._copies.get(name)
        if topic is None or copy is None:
            return None
        partition = op.partition % len(topic.partitions)
        return name, partition, topic.partitions[partition], copy

    def _sources_of(self, copy: Copy, partition: int, log: Log) -> Iterator[tuple[int, list[int]]]:
        """Give, for each record of a copy that its source held, its offset and the source's offsets of it."""
        if copy.source_id is None or not self._is_of_now(copy):
            return
        place, allowed = (self._names[copy.source], partition), Allowed(own_times=copy.own_times)
        held = [*self._history.get(place, {}).items()]
        held += [(offset, record) for offset, before in self._former.get(place, {}).items() for record in before]
        offsets: dict[tuple[object, ...], list[int]] = {}
        for offset, record in held:
            offsets.setdefault(text_of(record, allowed), []).append(offset)
        for offset, record in sorted(log.records.items()):
            if found := offsets.get(text_of(record, allowed)):
                yield offset, found

    # --- what was done ------------------------------------------------------------------------------------------------

    def _cause(self, number: int, cause: str) -> None:
        self._source_causes[self._names[number]].add(cause)
        for copy in self._copies.values():
            if copy.source == number:
                copy.causes.add(cause)

    def _keep(self, number: int) -> None:
        """From now on, what is done to a source must not reach a copy that holds records of somebody else."""
        for copy in self._copies.values():
            copy.kept |= copy.others and copy.source == number and self._is_of_now(copy)

    def _expires(self, number: int) -> None:
        """The source deletes by age from now on, and so do its copies, but for one that has what the source lost."""
        self._cause(number, "source expired")
        for copy in self._copies.values():
            is_alone = "TRUNCATED" in copy.standing.values()
            copy.expires |= copy.source == number and copy.owned and self._is_of_now(copy) and not is_alone

    def _forget_source(self, number: int) -> None:
        name = self._names[number]
        for place in [place for place in self._history if place[0] == name]:
            del self._history[place]
            self._former.pop(place, None)

    def _journal_lost(self) -> None:
        self._flow_causes.add("journal lost")
        self._failed_over = False
        for copy in self._copies.values():
            copy.standing.clear()

    def _damage(self, side: Side, place: tuple[str, int], log: Log) -> list[tuple[int, int]]:
        """Return what is damaged of what a log still has: offsets from and to before."""
        found = self._damaged[side].get(place, ())
        return [(first, following) for first, following in found if log.start < following and first < log.end]

    def _forget_damage(self, side: Side, name: str) -> None:
        for place in [place for place in self._damaged[side] if place[0] == name]:
            del self._damaged[side][place]

    def _crashed(self) -> None:
        """Note that a broker that crashed cut its logs to before what is damaged in them."""
        for side in SIDES:
            if self._world.crashes[side] == self._crashes[side]:
                continue
            self._crashes[side] = self._world.crashes[side]
            for (name, partition), found in self._damaged[side].items():
                if side == "source":
                    if name in self._names:
                        self._cause(self._names.index(name), "source cut")
                elif (copy := self._copies.get(name)) is not None:
                    copy.causes.add("target cut")
                    first = min(first for first, _ in found)
                    self._cut_from[name, partition] = min(first, self._cut_from.get((name, partition), first))
            self._damaged[side].clear()

    # --- commands -----------------------------------------------------------------------------------------------------

    def _config(self, flow: str = "", include: str = "", epoch_s: float = 0.0) -> Path:
        topics: dict[str, Any] = {}
        if self._schedule.translates:
            topics["offsets"] = "translate"
        if self._schedule.continues:
            topics["on_data_loss"] = "continue"
        if self._skips_damage:
            topics["on_damage"] = "skip"
        ends = self._world.source.bootstrap, self._world.target.bootstrap
        sections = {
            "groups": {"include": [f"{self._tag}\\..*"], "interval_s": 0.5},
            "sync": {"interval_s": 1.0, "deletions": "delete" if self._schedule.deletes else "keep"},
            "limits": {"memory_mb": 16},
            "spark": {"epoch_s": epoch_s or self._epoch_seconds, "tasks": self._schedule.tasks},
        }
        names = [include or f"{self._tag}\\..*"]
        return config_file(self._folder, *ends, names, flow or self._tag, sections=sections, **topics)

    def _create(self, name: str, partitions: int, kind: str) -> None:
        """Create a source topic with settings of a kind (`TOPIC_CONFIGS`)."""
        self._world.source.create(name, partitions, TOPIC_CONFIGS[kind])
        self._source_configs[name] = kind
