"""Plays a schedule: does each operation, looks at both clusters, and holds what the mirror did and said against it."""

from __future__ import annotations

import json
import shutil
import signal
import time
import traceback
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

from confluent_kafka import KafkaError, KafkaException

from .driving import Command
from .journal import PASSING, STOPS, Recorded, found_in
from .judging import Allowed, Finding, differences, moved_differences, text_of, vanished
from .logs import Log, Reader, Record, Topic
from .operations import COPY_CONFIGS, DISTURBING, JOURNAL_CONFIGS, TOPIC_CONFIGS, Op, Schedule
from .world import SIDES, Side, World

#: What a command may take, and what a live mirror may take to come to rest, with others on the machine.
COMMAND_SECONDS: Final = 60.0
#: The amounts of `other_way` that stand for other names.
OTHER_NAMES: Final = (25, 50)
#: Within which a mirror has copied what was produced, and most likely reported nothing of it.
UNREPORTED_SECONDS: Final = 0.2
SETTLE_SECONDS: Final = 60.0
#: When it should have reported all but what it refuses.
REFUSED_SECONDS: Final = 8.0
#: In which a broker notices what a setting destroys.
RETENTION_SECONDS: Final = 1.0
#: In which a live mirror hears of what was accepted.
HEARD_SECONDS: Final = 10.0
#: In which a broker writes where its logs begin, now, to its disk.
RESTORE_SECONDS: Final = 0.3
#: In which a live mirror looks at both clusters, and does what it found there.
REFRESH_SECONDS: Final = 2.5
#: Within which a task that lasts sees that it lost its connection to the target.
SEEN_SECONDS: Final = 3.0
#: Before which of its orders a command is suspended, by an amount: what it changes of topics comes first.
ORDERS: Final[Mapping[int, int]] = {0: 0, 25: 0, 50: 1, 75: 2, 90: 3, 100: 4}
#: Longer than `mirror.suspension` takes for a pause.
SUSPENDED_SECONDS: Final = 5.5
#: How long a task lives: what is done to a copy that nothing is written to is found when the next one begins.
EPOCH_SECONDS: Final = 2.0
#: The same of those that outlive a schedule.
LASTING_SECONDS: Final = 600.0
#: The same of a bounded run, which gives up after two in which nothing went on.
ONCE_SECONDS: Final = 15.0
#: The same where its first tasks come late, to an epoch that is over: so are they with this amount.
LATE: Final = 75
LATE_EPOCH_SECONDS: Final = 2.5
LATE_SECONDS: Final = 3.0
#: For each stop, what may have caused it.
CAUSES: Final[Mapping[str, frozenset[str]]] = {
    "TRUNCATED": frozenset({"source cut"}),
    "RECREATED": frozenset({"source recreated"}),
    "RETENTION_GAP": frozenset({"source expired"}),
    "DIVERGED": frozenset({"stranger", "second flow", "target set", "unrecorded"}),
    "TARGET_LOST": frozenset({"target cut"}),
    "CORRUPT": frozenset({"source damaged", "target damaged"}),
    "FENCED": frozenset({"twin", "second flow", "stranger"}),
}
#: Operations on a copy that a task need not see while it has nothing to write.
UNSEEN: Final = frozenset(
    {"expire_target", "cut_target", "stranger_writes", "delete_target", "cut_journal", "delete_journal", "undo"}
)
#: What a preflight may refuse a flow for.
REFUSABLE: Final = frozenset(
    {"foreign", "clash", "journal lost", "second flow", "failed over", "source deleted", "source recreated", "renamed"}
    | {"stranger", "target cut", "source cut", "target set", "target grown", "other way"}
)
Place = tuple[str, int]


@dataclass(slots=True)
class Copy:
    """What is known of one topic on the target. `owned`: the flow made it, or took it over while it was empty.
    `causes`: what was done to it and its source since. `start`: by partition, up to where its records may be gone;
    None: anywhere. `confirmed`: up to where a person took records of somebody else for the source's. `others`: it holds
    records that somebody else wrote while its source was there. `resolved_at`: when a person last resolved its stops,
    by the monotonic clock. `kept`: what was done to its source after that must not reach it.
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


S = TypeVar("S")


@dataclass(slots=True)
class Played(Generic[S]):
    """How a schedule went. `steps`: what was done, a line each; `findings`: what must not be; `excused`: what must not
    be, and pages name as a limit.
    """

    schedule: S
    steps: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    seconds: float = 0.0
    failure: str = ""
    logs: str = ""
    excused: set[str] = field(default_factory=set)

    @property
    def kinds(self) -> list[str]:
        """Of the findings."""
        return sorted({one.kind for one in self.findings})

    def __str__(self) -> str:
        lines = [f"{self.schedule}: {self.seconds:.1f} s", *(f"    {step}" for step in self.steps)]
        lines += [f"  ~ {one}" for one in sorted(self.excused)]
        lines += [f"  ! {one}" for one in self.findings]
        return "\n".join(lines + ([self.failure] if self.failure else []))


def play(world: World, schedule: Schedule, ignored: frozenset[str] = frozenset()) -> Played[Schedule]:
    """Play it until something is found; `ignored` names invariants (`I4`) or kinds of findings to pass over."""
    played, began = Played(schedule), time.monotonic()
    with world.playing():
        player = _Player(world, schedule, played, ignored)
        try:
            player.play()
        except Exception:  # of the adversary itself: reported, and no finding
            played.failure = traceback.format_exc()
        finally:
            player.clear()
    played.seconds = time.monotonic() - began
    return played


class _Player:
    def __init__(self, world: World, schedule: Schedule, played: Played[Schedule], ignored: frozenset[str]) -> None:
        self._world, self._schedule, self._played, self._ignored = world, schedule, played, ignored
        self._tag = f"x{uuid.uuid4().hex[:7]}"
        self._folder = world.folder / self._tag
        self._folder.mkdir()
        self._readers = {side: Reader(world.sides[side].bootstrap) for side in SIDES}
        self._names = [f"{self._tag}.{letter}" for letter in "abc"[: len(schedule.created)]]
        self._group = f"{self._tag}.g"
        self._prefix, self._excluded, self._continues = "", False, schedule.continues
        self._source: dict[str, Topic] = {}
        self._target: dict[str, Topic] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self._strangers = set[str]()
        self._source_configs = dict(zip(self._names, schedule.created, strict=True))
        self._source_causes: dict[str, set[str]] = {name: set() for name in self._names}
        self._history: dict[tuple[str, int], dict[int, Record]] = {}
        self._copies: dict[str, Copy] = {}
        self._read: dict[
            tuple[UUID | None, int], int
        ] = {}  # by the source topic's id: of a former one, a commit may be due
        self._groups: dict[Place, int] = {}
        self._baseline: tuple[dict[str, Topic], dict[str, dict[str, str]], dict[Place, int]] = ({}, {}, {})
        self._live: list[Command] = []
        self._flow_causes = set[str]()
        self._failed_over = False
        self._place = 0
        self._cut_from: dict[Place, int] = {}
        self._disturbed_at = 0.0
        self._expired = False
        self._paused = set[str]()
        self._promised: dict[str, int] = {}
        self._epoch_seconds = LASTING_SECONDS if schedule.lasts else EPOCH_SECONDS
        self._is_unseen = False
        self._former: dict[tuple[str, int], dict[int, set[Record]]] = {}
        self._copied: dict[tuple[UUID | None, int], dict[int, set[Record]]] = {}
        self._former_settings: dict[tuple[int, int], Mapping[str, str]] = {}
        self._deleted_settings: dict[str, dict[str, str]] = {}
        self._damaged: dict[Side, dict[Place, set[tuple[int, int]]]] = {side: {} for side in SIDES}
        self._skips_damage = False
        self._crashes = dict(world.crashes)

    # --- the play -----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Operation after operation, up to the first that shows something."""
        schedule = self._schedule
        for name, kind, partitions in zip(self._names, schedule.created, schedule.partitions, strict=True):
            self._world.source.create(name, partitions, TOPIC_CONFIGS[kind])
        self._rebase()
        for self._place, op in enumerate(schedule.operations):
            began = time.monotonic()
            output = getattr(self, f"_op_{op.name}")(op)
            if op.name in UNSEEN and output != "-" and self._live:
                self._disturbed_at = time.time()
                self._is_unseen |= schedule.lasts and op.name != "cut_target"
            self._played.steps.append(f"{self._place:2} {op}: {output} [{time.monotonic() - began:.1f} s]")
            if output != "-":
                self._judge()
            if self._played.findings:
                break
        else:
            copies = self._copies.values()
            others = any(copy.source_id != self._id_of(copy) or not copy.owned or copy.kept for copy in copies)
            if others or any(copy.standing and self._kind(copy.source) == "short" for copy in copies):
                time.sleep(REFRESH_SECONDS if any(copy.kept for copy in copies) else RETENTION_SECONDS)
                self._judge()
        if self._played.findings:
            self._played.logs = "\n".join(
                f"== {path.name}\n{path.read_text(errors='replace')[-6000:]}"
                for path in sorted(self._folder.glob("*.err"))
            )

    def clear(self) -> None:
        """End what runs, and delete what was made."""
        for command in self._live:
            command.end()
        for side in (self._world.source, self._world.target):
            with suppress(KafkaException):
                mine = [name for name in side.admin.list_topics(timeout=10).topics if self._is_mine(name)]
                side.forget(mine)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _is_mine(self, topic: str) -> bool:
        return self._tag in topic

    def _found(self, invariant: str, what: str, detail: str) -> None:
        self._add(Finding(invariant, what, detail))

    def _add(self, finding: Finding) -> None:
        if finding.invariant not in self._ignored and finding.kind not in self._ignored:
            self._played.findings.append(finding)

    # --- reads --------------------------------------------------------------------------------------------------------

    def _read_logs(self) -> None:
        """Read both sides anew, and keep what the source held."""
        self._source = self._readers["source"].topics(self._names)
        names = {f"{prefix}{name}" for name in self._names for prefix in ("", "p.")} | self._strangers
        self._target = self._readers["target"].topics(sorted(names))
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
                for offset, one in log.records.items():
                    copied.setdefault(offset, set()).add(one)
        places = [(name, number) for name, topic in self._target.items() for number in topic.partitions]
        self._groups = self._world.target.committed(self._group, places)

    def _judge(self) -> None:
        """Hold what is on the target now against what was there at the last read."""
        before, configs, groups = self._baseline
        self._read_logs()
        for name, topic in before.items():
            if name not in self._copies:
                continue
            copy, now = self._copies[name], self._target.get(name)
            if now is None or now.id != topic.id:
                if "target deleted" in copy.causes or self._may_delete(copy):
                    continue
                self._found("I1", "a topic was deleted", f"{name}: {self._owner(copy)}")
                continue
            self._judge_settings(name, copy, topic, now, configs[name], self._configs[name])
            if self._is_over and "second flow" not in self._flow_causes:
                self._judge_over(name, topic, now)
            for partition, log in topic.partitions.items():
                start = None if copy.expires else copy.start.get(partition, 0)
                if copy.owned and start is not None and not copy.causes & {"source recreated"}:
                    start = max(start, self._log_start(copy, partition))
                end = self._cut_from.get((name, partition))
                for one in vanished(
                    f"{name}-{partition}", log, now.partitions[partition], start, end, compacted=copy.compacted
                ):
                    self._add(one)
        for name in self._target:
            self._adopt_new(name)
        self._judge_groups(groups, self._cut_from.keys())
        self._cut_from.clear()
        self._expired = False
        self._judge_live()
        self._baseline = self._target, self._configs, self._groups

    @property
    def _is_over(self) -> bool:
        """The flow was failed over before this operation."""
        return self._failed_over and not self._schedule.operations[self._place].name.startswith(("failover", "asleep"))

    def _judge_over(self, name: str, before: Topic, now: Topic) -> None:
        for partition, log in before.partitions.items():
            if (end := now.partitions[partition].end) > log.end:
                self._found("I3", "copied on after a failover", f"{name}-{partition}: from {log.end} to {end}")

    def _log_start(self, copy: Copy, partition: int) -> int:
        """Where the source's log starts: a copy that was begun behind it has padding before."""
        topic = self._source.get(self._names[copy.source])
        return topic.partitions[partition].start if topic and partition in topic.partitions else 0

    def _adopt_new(self, name: str) -> None:
        if name not in self._copies or "target deleted" in self._copies[name].causes:
            number = next((n for n, one in enumerate(self._names) if name in (one, f"p.{one}")), 0)
            deleted_at = time.monotonic() if name in self._copies else float("-inf")
            self._copies[name] = Copy(number, owned=True, source_id=self._source_id(number), resolved_at=deleted_at)
            self._follow_source(self._copies[name])

    def _follow_source(self, copy: Copy) -> None:
        """The copy gets the settings of the source topic that there is now."""
        kind = self._kind(copy.source)
        copy.causes |= self._source_causes[self._names[copy.source]] & {"source expired"}
        copy.expires |= kind == "short" or (kind in {"default", "week"} and self._has_old(copy.source))
        copy.compacted |= kind == "compact"
        copy.own_times |= kind == "append"

    def _judge_settings(
        self, name: str, copy: Copy, before: Topic, now: Topic, was: dict[str, str], configs: dict[str, str]
    ) -> None:
        # A flow that was failed over claims nothing any more.
        is_anothers = self._is_over and self._schedule.operations[self._place].name == "second"
        is_free = is_anothers or "journal lost" in self._flow_causes
        if is_free and not any(log.end for log in before.partitions.values()):
            copy.source_id = self._id_of(copy)  # nobody knows whose it was, and it holds nothing
            self._follow_source(copy)
        if copy.owned and not copy.kept and copy.source_id == self._id_of(copy) and not self._is_left(name):
            return
        why = self._owner(copy)
        if configs != was and "target configured" not in copy.causes:
            former = self._former_settings.get((self._place, copy.source), {})  # on their way as the topic was deleted
            changed = {key for key in was.keys() | configs.keys() if was.get(key) != configs.get(key)}
            changed -= {key for key in changed if former.get(key) == configs.get(key)}
            if self._schedule.operations[self._place].name in DISTURBING:
                # Kafka 4.3.0 gives a topic the settings of the one that had its name before, once it is restarted.
                deleted = self._deleted_settings.get(name, {})
                changed -= {key for key in changed if deleted.get(key) == configs.get(key)}
            text = ", ".join(f"{key}: {was.get(key)} is now {configs.get(key)}" for key in sorted(changed))
            if changed:
                self._found("I1", "settings were changed", f"{name} ({why}): {text}")
        if len(now.partitions) != len(before.partitions):
            self._found(
                "I1", "partitions were added", f"{name} ({why}): {len(before.partitions)} to {len(now.partitions)}"
            )
        if not copy.owned and any(
            partition not in before.partitions or log.end > before.partitions[partition].end
            for partition, log in now.partitions.items()
        ):
            self._found("I1", "a stranger's topic was written to", f"{name}")

    def _judge_groups(self, before: Mapping[Place, int], cut: Collection[Place]) -> None:
        for (name, partition), offset in self._groups.items():
            if before.get((name, partition)) == offset:
                continue
            log, copy = self._target[name].partitions[partition], self._copies.get(name)
            place = f"{name}-{partition}: {self._group} at {offset}"
            if offset > log.end and (name, partition) not in cut:
                self._found("I5", "a group is beyond the end", f"{place}, the log ends at {log.end}")
            if offset < log.start and (copy is None or not copy.expires) and not self._expired:
                self._found("I5", "a group is below the start", f"{place}, the log starts at {log.start}")
            if copy is None:
                continue
            read = self._read.get((copy.source_id, partition), 0)
            if self._schedule.translates:
                unread = [
                    at for at, offsets in self._sources_of(copy, partition, log) if at < offset and min(offsets) >= read
                ]
                if unread:
                    self._found(
                        "I5", "a group is ahead of its reader", f"{place}, not read: {len(unread)} from {unread[0]}"
                    )
            elif offset > max(read, log.start):
                self._found("I5", "a group is ahead of its reader", f"{place}, read up to {read}")

    def _sources_of(self, copy: Copy, partition: int, log: Log) -> Iterator[tuple[int, list[int]]]:
        """Of each record of a copy that its source held: its offset, and which ones it had there."""
        if copy.source_id is None or copy.source_id != self._id_of(copy):
            return
        at, allowed = (self._names[copy.source], partition), Allowed(own_times=copy.own_times)
        held = [(offset, one) for offset, one in self._history.get(at, {}).items()]
        held += [(offset, one) for offset, before in self._former.get(at, {}).items() for one in before]
        places: dict[tuple[object, ...], list[int]] = {}
        for offset, one in held:
            places.setdefault(text_of(one, allowed), []).append(offset)
        for offset, one in sorted(log.records.items()):
            if offsets := places.get(text_of(one, allowed)):
                yield offset, offsets

    def _judge_live(self) -> None:
        """A live mirror goes on until somebody ends it."""
        for command in [one for one in self._live if not one.is_alive]:
            self._live.remove(command)
            code = command.wait(1)
            if code in {1, -6, -11} or (code is not None and code < 0):
                self._found("I9", "a live mirror died", f"exit {code}: {command.logged[-1500:]}")
            elif code == 0 and not self._failed_over:
                self._found("I7", "a live mirror ended with 0", command.logged[-1500:])
            elif code == 3 and not self._may_refuse() and not self._failed_over:
                self._found("I7", "refused without a cause", command.logged[-1500:])

    def _owner(self, copy: Copy) -> str:
        if not copy.owned:
            return "not the flow's"
        if copy.kept:
            return "the flow's, with records of somebody else"
        return "the flow's" if copy.source_id == self._id_of(copy) else "the flow's, of a topic that was deleted since"

    def _is_left(self, name: str) -> bool:
        """Whether a copy is of a name that the flow does not use any more."""
        return name.startswith("p.") != bool(self._prefix)

    def _kind(self, number: int) -> str:
        return self._source_configs[self._names[number]]

    def _has_old(self, number: int) -> bool:
        return "old" in self._source_causes[self._names[number]]

    def _source_id(self, number: int) -> UUID | None:
        topic = self._source.get(self._names[number])
        return topic.id if topic else None

    def _id_of(self, copy: Copy) -> UUID | None:
        return self._source_id(copy.source)

    def _may_delete(self, copy: Copy) -> bool:
        return copy.owned and not copy.kept and self._schedule.deletes and "source deleted" in copy.causes

    def _may_refuse(self) -> bool:
        every = set(self._flow_causes)
        for copy in self._copies.values():
            every |= copy.causes | ({"foreign"} if not copy.owned else set())
        return bool(every & REFUSABLE)

    def _recorded(self, flow: str = "") -> Recorded:
        return found_in(self._readers["target"].entries(f"mirror.{flow or self._tag}.offsets"))

    def _target_of(self, name: str) -> str:
        return f"{self._prefix}{name}"

    def _pairs(self) -> Iterator[tuple[str, int, Log, Log | None, Copy | None]]:
        """Source topic and partition, its log, and what there is of its copy."""
        for name, topic in self._source.items():
            if self._excluded and name == self._names[-1]:
                continue
            there = self._target.get(self._target_of(name))
            for partition, log in topic.partitions.items():
                copied = there.partitions.get(partition) if there else None
                yield name, partition, log, copied, self._copies.get(self._target_of(name))

    def _unequal(self, expected: Recorded, *, moves: bool | None = None) -> list[Finding]:
        """In what both sides differ, partition by partition; where offsets move (None: as the flow has it)."""
        moves = self._schedule.translates if moves is None else moves
        found: list[Finding] = []
        for name, partition, log, copied, copy in self._pairs():
            place = f"{self._target_of(name)}-{partition}"
            if copied is None or copy is None:
                if log.stable > log.start:
                    found.append(Finding("I2", "there is no copy", place))
                continue
            start = None if copy.expires else copy.start.get(partition, 0)
            allowed = Allowed(
                start=start,
                losses=tuple(expected.losses.get((self._target_of(name), partition), ())),
                history=self._history.get((name, partition), {}),
                former=self._former.get((name, partition), {}),
                copied=self._copied.get((self._target[self._target_of(name)].id, partition)),
                confirmed=copy.confirmed.get(partition, 0),
                own_times=copy.own_times,
                compacted=copy.compacted,
            )
            self._judge_losses(place, copy, allowed.losses, self._damage("source", (name, partition), log))
            compare = moved_differences if moves else differences
            found += compare(place, log, copied, allowed)
        return found

    def _equal(self, said: str, expected: Recorded, invariant: str = "I2", *, moves: bool | None = None) -> None:
        """Something was said that implies equality."""
        for one in self._unequal(expected, moves=moves):
            self._add(Finding(invariant, one.what, f"{said}, but {one.detail}"))

    # --- the mirror ---------------------------------------------------------------------------------------------------

    def _config(
        self,
        flow: str = "",
        include: str = "",
        prefix: str = "",
        epoch_s: float = 0.0,
        *,
        turns: bool = False,
        astray: bool = False,
        names: str = "",
    ) -> Path:
        flow, source = flow or self._tag, self._world.source
        topics: dict[str, Any] = {"include": [include or f"{self._tag}\\..*"]}
        if self._excluded:
            topics["exclude"] = [self._names[-1].replace(".", "\\.")]
        if prefix := prefix or self._prefix:
            topics["naming"] = {"prefix": prefix, "rename": {name: f"{prefix}{name}" for name in self._names}}
        if names:
            topics["naming"] = {"prefix": names}
        if self._schedule.translates != turns:
            topics["offsets"] = "translate"
        if self._continues:
            topics["on_data_loss"] = "continue"
        if self._skips_damage:
            topics["on_damage"] = "skip"
        content = {
            "name": flow,
            "source": {"alias": "eu", "bootstrap.servers": (self._world.target if astray else source).bootstrap},
            "target": {"alias": "us", "bootstrap.servers": self._world.target.bootstrap},
            "topics": topics,
            "groups": {"include": [f"{self._tag}\\..*"], "interval_s": 0.5},
            "sync": {
                "interval_s": 1.0,
                "deletions": "delete" if self._schedule.deletes else "keep",
                "acls": self._schedule.acls,
            },
            "limits": {"memory_mb": 16},
            "spark": {"epoch_s": epoch_s or self._epoch_seconds, "tasks": self._schedule.tasks},
        }
        path = self._folder / f"{flow}.yaml"
        path.write_text(json.dumps(content))
        return path

    def _command(
        self, *arguments: str, seconds: float = COMMAND_SECONDS, late: float = 0.0
    ) -> tuple[int | None, Command]:
        """Run a command to its end, and judge how it ended. Its engine's first tasks begin `late`."""
        command = Command(self._folder, *arguments, late=late)
        code = command.wait(seconds)
        said = f"mirror {' '.join(one for one in arguments if not one.startswith('/'))}"
        if code is None:
            command.end()
            self._found("I7", "a command hangs", f"{said}: {command.logged[-1500:]}")
        elif code == 1 or code < 0:
            self._found("I9", "a command ended with a bug", f"{said}: exit {code}: {command.logged[-2500:]}")
        return code, command

    def _ended(self, command: Command, number: signal.Signals, otherwise: str) -> int | None:
        """The exit code of a command that ends behind a signal, and judge how it ended."""
        command.send(number)
        code = command.wait(COMMAND_SECONDS)
        if code is None:
            self._found("I7", otherwise, command.logged[-1500:])
            command.end()
        elif code == 1:
            self._found("I9", "a command ended with a bug", command.logged[-2500:])
        return code

    def _op_run(self, op: Op) -> str:
        if self._live:
            return self._op_settle(op)
        late = LATE_SECONDS if op.amount == LATE else 0.0
        path = self._config(epoch_s=LATE_EPOCH_SECONDS if late else ONCE_SECONDS)
        code, command = self._command("run", str(path), "--once", "--json", late=late)
        self._read_again()
        reported = self._recorded()
        self._judge_states(reported, command)
        if code == 0:
            if self._failed_over:
                self._found("I3", "a flow that was failed over ran", "exit 0")
            self._equal("run --once said 0", reported)
            for name, copy in self._copies.items():
                if copy.standing and not self._is_left(name) and self._names[copy.source] in self._source:
                    self._found("I6", "a stop lifted itself", f"{name}: {copy.standing}, and now exit 0")
        elif code == 3 and not self._may_refuse() and not self._failed_over:
            self._found("I7", "refused without a cause", command.logged[-1500:])
        elif code == 4 and not any(one.state in STOPS for one in reported.states.values()):
            self._found("I7", "data at risk, but no stop is named", command.logged[-1500:])
        elif code == 6 and any(one.state == "PAUSED" for one in reported.states.values()):
            pass  # what is paused is named as incomplete
        elif code == 6 and late and any(one.state == "STARTING" for one in reported.states.values()):
            pass  # the machine was too slow for the second of its short epochs as well: the next run has time
        elif code in {2, 6}:
            self._found("I7", f"ended with {code}, with both clusters there", command.logged[-2500:])
        return f"exit {code}{self._states(reported)}"

    def _op_other_way(self, op: Op) -> str:
        """A run with the other offsets, or by other names, by mistake: whatever it says is copied is there once and in
        order, and nothing is by names that nobody gave to single topics.
        """
        if self._live or self._failed_over:
            return "-"
        if op.amount in OTHER_NAMES:
            return self._other_names()
        self._flow_causes.add("other way")
        code, command = self._command("run", str(self._config(epoch_s=ONCE_SECONDS, turns=True)), "--once", "--json")
        self._read_again()
        reported = self._recorded()
        self._judge_states(reported, command)
        if code == 0:
            self._equal("run --once said 0 with other offsets", reported, moves=True)
        return f"exit {code}{self._states(reported)}"

    def _other_names(self) -> str:
        copies = [self._target_of(name) for name in self._source]
        known = [name for name in copies if name in self._target and self._copies[name].owned]
        if known != copies or "journal lost" in self._flow_causes:
            return "-"
        code, _ = self._command("run", str(self._config(epoch_s=ONCE_SECONDS, names="q.")), "--once", "--json")
        for name in self._readers["target"].topics([f"q.{name}" for name in self._source]):
            self._found("I2", "copied once more by a name that nobody gave", name)
        return f"exit {code} by other names"

    def _read_again(self) -> None:
        """A read besides the one with which each operation ends."""
        self._read_logs()
        for name in self._target:
            self._adopt_new(name)

    def _rebase(self) -> None:
        """What is on the target now was done by somebody else."""
        self._read_logs()
        self._baseline = self._target, self._configs, self._groups

    def _states(self, expected: Recorded) -> str:
        found = {f"{one.state}@{one.next_offset}" for one in expected.states.values()}
        return f" {' '.join(sorted(found))}"

    def _judge_states(self, expected: Recorded, command: Command | None) -> None:
        """Stops name causes that there are, and stay."""
        began = int(command.began * 1000) if command else 0
        for (name, partition), standing in expected.states.items():
            copy = self._copies.get(name)
            if copy is None or standing.at_ms < began or self._names[copy.source] in self._paused:
                continue
            if standing.state in STOPS:
                foreign = set() if copy.owned else {"foreign"}
                causes = REFUSABLE if standing.state == "REFUSED" else CAUSES.get(standing.state, frozenset())
                met = copy.causes | self._flow_causes | self._source_causes[self._names[copy.source]] | foreign
                if standing.state == "REFUSED" and copy.compacted and "target deleted" in met:
                    causes |= {"source expired"}  # what begins behind 0 cannot be compacted
                if standing.state == "DIVERGED" and met & {"source expired", "target expired"}:
                    causes |= {"journal lost"}  # nothing is left that could confirm the copy
                if not causes & met:
                    known = sorted(copy.causes | self._flow_causes) or ["nothing"]
                    detail = f"{name}-{partition}: {standing.state} after {', '.join(known)}: {standing.detail}"
                    self._found("I4", f"{standing.state} without its cause", detail)
                is_known = copy.owned and "journal lost" not in self._flow_causes
                clashes = name.replace(".", "_") in self._strangers
                if standing.state == "REFUSED" and is_known and not clashes and "source recreated" in copy.causes:
                    self._found("I4", "REFUSED in place of RECREATED", f"{name}-{partition}: {standing.detail}")
                if self._promised.get(name) == self._place - 1 and not self._live and standing.state not in PASSING:
                    detail = f"{name}-{partition}: {standing.state}: {standing.detail}"
                    self._found("I7", "what was accepted stops again", detail)
                is_heard = time.monotonic() - copy.resolved_at > HEARD_SECONDS
                if standing.state not in PASSING and name in self._target and is_heard:
                    copy.standing[partition] = standing.state
            elif partition in copy.standing and standing.state in {"MIRRORING", "CAUGHT_UP", "PADDING"}:
                detail = f"{name}-{partition}: {copy.standing[partition]}, now {standing.state}"
                self._found("I6", "a stop lifted itself", detail)

    def _op_live(self, _op: Op) -> str:
        if self._live:
            return "-"
        self._is_unseen = False
        self._live.append(Command(self._folder, "run", str(self._config()), "--json"))
        return self._op_settle(_op)

    def _op_settle(self, _op: Op) -> str:
        """Until the mirror says of each partition that it is caught up or stopped."""
        if not self._live:
            return "-"
        deadline, rest, missing = time.monotonic() + SETTLE_SECONDS, list[str](), set[str]()
        command, reported = self._live[-1], Recorded()
        while time.monotonic() < deadline and command.is_alive:
            self._source = self._readers["source"].topics(self._names)
            reported = self._recorded()
            missing.clear()
            if not (rest := self._in_doubt(reported, command, missing)):
                self._read_again()
                self._judge_states(reported, command)
                self._caught_up(reported)
                return f"settled{self._states(reported)}"
            lacking = missing - self._held(reported)
            if time.monotonic() > deadline - SETTLE_SECONDS + REFUSED_SECONDS and self._excused(rest, lacking):
                return f"not settled: {rest}"
            time.sleep(0.2)
        if not command.is_alive:
            return f"the mirror ended with {command.wait(1)}"
        if not self._excused(rest, missing - self._held(reported)):
            self._found("I7", "a live mirror does not come to rest", f"{rest}; {command.logged[-1500:]}")
        return f"not settled: {rest}"

    def _held(self, reported: Recorded) -> set[str]:
        """The source topics whose copies get no further partitions, since one that they have is stopped (G4)."""
        stopped = {name for (name, _), one in reported.states.items() if one.state in STOPS}
        return {name for name in self._names if self._target_of(name) in stopped}

    def _excused(self, rest: list[str], missing: Collection[str]) -> bool:
        """Whether what nothing is reported of, of the source topics `missing`, need not be: a partition more of a topic
        that is paused or was recreated has no copy. What is refused is reported so.
        """

        def has_no_copy(name: str) -> bool:
            copy = self._copies.get(self._target_of(name))
            return name in self._paused or (copy is not None and "source recreated" in copy.causes)

        return all(map(has_no_copy, missing)) and all("not reported" in text for text in rest)

    def _in_doubt(self, expected: Recorded, command: Command, missing: set[str] | None = None) -> list[str]:
        """What is not at rest; `missing` gets source topics with a partition of which nothing is reported."""
        found = []
        for name, partition, log, _, _ in self._pairs():
            at = expected.states.get((self._target_of(name), partition))
            place = f"{name}-{partition}"
            if at is None or at.at_ms < command.began * 1000:
                found.append(f"{place} is not reported")
                if missing is not None:
                    missing.add(name)
            elif not self._schedule.lasts and at.at_ms < (self._disturbed_at + 2 * EPOCH_SECONDS) * 1000:
                found.append(f"{place} is {at.state}, and was not looked at since")
            elif self._schedule.lasts and time.time() < self._disturbed_at + SEEN_SECONDS:
                found.append(f"{place} is {at.state}, and the target's broker may just have been lost")
            elif at.state in STOPS or at.state == "PAUSED":
                continue
            elif at.state == "MIRRORING" and log.stable in (0, at.next_offset):
                continue  # it is caught up once a fetch of nothing is answered, for which a task may live too short
            elif not log.stable and at.state == "STARTING":
                continue  # the same
            elif at.state != "CAUGHT_UP" or at.next_offset != log.stable:
                found.append(f"{place} is {at.state} at {at.next_offset}, the source ends at {log.stable}: {at.detail}")
        return found

    def _caught_up(self, expected: Recorded) -> None:
        """What is said to be caught up is equal, but for what a task that lasts need not see."""
        if self._is_unseen:
            return
        mine = {
            f"{self._target_of(name)}-{partition}"
            for name, partition, _, _, _ in self._pairs()
            if (at := expected.states.get((self._target_of(name), partition))) and at.state == "CAUGHT_UP"
        }
        for one in self._unequal(expected):
            if one.detail.split(":")[0] in mine:
                self._add(Finding("I2", one.what, f"CAUGHT_UP was said, but {one.detail}"))

    def _op_kill(self, _op: Op) -> str:
        if not self._live:
            return "-"
        self._live.pop().end()
        return "killed"

    def _op_freeze(self, op: Op) -> str:
        if not self._live:
            return "-"
        command = self._live[-1]
        command.send(signal.SIGSTOP)
        time.sleep(0.5 + op.amount / 50)
        command.send(signal.SIGCONT)
        return "frozen and gone on"

    def _op_end(self, _op: Op) -> str:
        if not self._live:
            return "-"
        command = self._live.pop()
        code = self._ended(command, signal.SIGTERM, "a mirror does not end")
        self._read_again()
        self._judge_states(self._recorded(), command)
        return f"exit {code}"

    def _op_twin(self, op: Op) -> str:
        """Another mirror of the same flow, which takes it over."""
        if not self._live:
            return "-"
        self._flow_causes.add("twin")
        older = self._live[-1]
        self._live.append(Command(self._folder, "run", str(self._config()), "--json"))
        reported = self._op_settle(op)
        if self._live and older in self._live and len(self._live) > 1 and older.wait(20) is not None:
            self._live.remove(older)
        return reported

    def _op_overtake(self, op: Op) -> str:
        """A live mirror is frozen with what it has not reported yet, another one copies all, and the first one goes on:
        it changes nothing any more.
        """
        if not self._live:
            return "-"
        command = self._live.pop()
        more = Op("produce", op.topic, op.partition, 7, "old")
        self._op_produce(more)
        if self._schedule.translates:  # its copy may expire before it is on record where it came from
            self._cause(op.topic, "unrecorded")
        time.sleep(UNREPORTED_SECONDS)
        command.send(signal.SIGSTOP)
        self._op_produce(more)
        reported = self._op_run(op)
        code = self._ended(command, signal.SIGCONT, "a mirror that was overtaken does not end")
        self._read_again()
        now = self._recorded()
        self._judge_states(now, command)
        if reported.startswith("exit 0"):
            self._equal("run --once said 0, before the first mirror went on", now)
            if (states := self._states(now)) not in reported:
                self._found("I8", "reports went back", f"{reported}, and once the first mirror went on:{states}")
        return f"overtaken: {reported}; went on: exit {code}{self._states(now)}"

    def _op_asleep(self, op: Op) -> str:
        """A command that is suspended right before one of its orders to the target, and goes on behind what somebody
        did meanwhile: a stranger's topic in the place of a copy, a source topic made anew, another mirror's whole run.
        """
        name, meanwhile = op.kind.split("/")
        if self._live or (name == "undo") != self._failed_over:
            return "-"
        path = str(self._config(epoch_s=ONCE_SECONDS))
        command = Command(self._folder, *self._asleep_arguments(name, path, op), halts_before=ORDERS[op.amount])
        while command.is_alive and not command.is_suspended:
            time.sleep(0.005)
        if command.is_suspended:
            self._judge()  # what it did before
            self._failed_over |= "failover_recorded" in command.logged
        done = self._meanwhile(meanwhile, op) if command.is_suspended else "fewer orders"
        time.sleep(SUSPENDED_SECONDS if command.is_suspended and op.partition else 0)
        code = self._ended(command, signal.SIGCONT, "a suspended command does not end")
        self._read_again()
        reported = self._recorded()
        self._judge_states(reported, command)
        if name in {"failover", "undo"} and code in {0, 4, 7}:
            self._failed_over = name == "failover"
        if name == "failover" and code == 0 and meanwhile == "overtaken":
            self._equal("failover said 0", reported, "I3")
            self._groups_stand(command)
        if meanwhile == "recreated" and not op.partition:  # between its last question and its order
            self._baseline = self._baseline[0], self._configs, self._baseline[2]
        if name in {"accept", "adopt"} and code in {0, 4}:
            for copy in self._copies.values():
                copy.standing.clear()
                copy.resolved_at = time.monotonic()
        return f"{done}; exit {code}{self._states(reported)}"

    def _asleep_arguments(self, name: str, path: str, op: Op) -> tuple[str, ...]:
        match name:
            case "run":
                return "run", path, "--once", "--json"
            case "failover":
                return "failover", path, "--json"
            case "undo":
                return "failover", path, "--undo"
            case _:
                return name, path, self._names[op.topic]

    def _meanwhile(self, what: str, op: Op) -> str:
        match what:
            case "replaced":
                deleted = self._op_delete_target(op)
                return f"{deleted}, {self._op_stranger_topic(replace(op, amount=7))}"
            case "recreated":
                return self._op_recreate(replace(op, kind="forever"))
            case _:
                self._flow_causes.add("twin")
                self._op_produce(Op("produce", op.topic, op.partition, 5, "plain"))
                return self._op_run(replace(op, amount=0))

    def _op_hung_task(self, op: Op) -> str:
        """The task of a live mirror hangs: its last report stands. The source is cut and grows to where it ended, and
        the flow is failed over, from which the mirror's driver signs off; then the task goes on.
        """
        if not self._live or (found := self._source_log(op)) is None:
            return "-"
        name, partition, log = found
        command = self._live.pop()
        command.send(signal.SIGSTOP)
        cut = self._op_cut_source(op)
        missing = log.end - self._readers["source"].topics([name])[name].partitions[partition].end
        if missing:
            self._op_produce(Op("produce", op.topic, partition, missing, "plain"))
        failover = Command(self._folder, "failover", str(self._config()), "--json")
        self._until_logged(failover, "failover_recorded")
        journal = f"mirror.{self._tag}.offsets"
        said = {key: value for _, key, value in self._readers["target"].entries(journal)}
        if owner := said.get(b"owner"):
            ended = json.dumps({"instance": json.loads(owner)["instance"]})
            self._world.target.put(journal, b"ended", ended.encode())
        reported = self._judge_failover(failover.wait(COMMAND_SECONDS), failover)
        command.send(signal.SIGCONT)
        if command.wait(COMMAND_SECONDS) is None:
            self._found("I7", "a mirror that was failed over does not end", command.logged[-1500:])
            command.end()
        self._read_again()
        if reported.startswith("exit 0"):
            self._equal("failover said 0, before the mirror went on", self._recorded(), "I3")
        return f"{cut}; {reported}"

    def _op_second(self, op: Op) -> str:
        """Another flow into the same target topics."""
        self._flow_causes.add("second flow")
        flow = f"{self._tag}-2"
        before = self._recorded().copies
        code, _ = self._command("run", str(self._config(flow)), "--once", "--json")
        after = self._recorded(flow).copies if not self._failed_over and "journal lost" not in self._flow_causes else {}
        for name in before.items() & after.items():
            if name[0] in self._target and name[1] == str(self._target[name[0]].id):
                self._found("I1", "two flows write to one topic", f"{name[0]}: exit {code}")
        copy = self._copies.get(self._target_of(self._names[op.topic]))
        if code == 0 and copy is not None and copy.owned and copy.causes:
            self._read_again()
            self._equal("another flow's run --once said 0", Recorded())
        return f"exit {code}"

    def _op_verify(self, _op: Op) -> str:
        code, command = self._command("verify", str(self._config()), "--json", "--no-spark")
        self._read_again()
        reported = self._recorded()
        unequal = self._unequal(reported)
        if code == 0:
            for side in SIDES:
                topics = self._source if side == "source" else self._target
                for (name, partition), log in self._logs(topics):
                    at = self._names[self._copies[name].source] if name in self._copies else name
                    theirs = self._source[at].partitions.get(partition) if at in self._source else None
                    begin = theirs.start if theirs and not self._schedule.translates else 0
                    found = [one for one in self._damage(side, (name, partition), log) if one[1] > begin]
                    if found:  # in what both sides have
                        self._found("I8", "verify said 0 over damage", f"{name}-{partition} of the {side}: {found}")
            for one in unequal:
                if one.what.startswith("records ") or one.what == "there is no copy":
                    self._add(Finding("I8", one.what, f"verify said 0, but {one.detail}"))
        elif code == 5 and not unequal and not self._schedule.translates and not self._live:
            excused = any(copy.start or copy.expires or copy.compacted for copy in self._copies.values())
            excused |= any(self._damaged.values())  # what cannot be read is not equal to anything
            for name, topic in self._source.items():
                there = self._target.get(self._target_of(name))
                excused |= there is None or there.partitions.keys() != topic.partitions.keys()
            if not excused and not any(reported.losses.values()):
                self._found("I8", "equal, but reported as different", command.printed[-1500:])
        return f"exit {code}"

    def _logs(self, topics: Mapping[str, Topic]) -> Iterator[tuple[Place, Log]]:
        for name, topic in topics.items():
            yield from (((name, partition), log) for partition, log in topic.partitions.items())

    def _op_accept(self, op: Op) -> str:
        name = self._names[op.topic]
        target = self._target_of(name)
        if (copy := self._copies.get(target)) is not None and "target set" in copy.causes:
            return "-"  # other times would be accepted, and stay differences
        advised = [one.detail for place, one in self._recorded().states.items() if place[0] == target]
        options = ("--unconfirmed",) if any("--unconfirmed" in detail for detail in advised) else ()
        code, command = self._command("accept", str(self._config()), name, "--json", *options)
        fields = json.loads(command.printed) if code in {0, 4} else {}
        resolved = {one["partition"] for kind in ("losses", "confirmed", "lifted") for one in fields.get(kind, ())}
        if not options:
            self._judge_lifted(target, fields.get("lifted", ()))
        if copy is not None and code:
            for partition in resolved:  # others stay stopped
                copy.standing.pop(partition, None)
        elif resolved:
            self._promised[target] = self._place
            if copy is not None:
                copy.standing.clear()
                copy.resolved_at = time.monotonic()
                copy.others = copy.kept = False
        if copy is not None and options and copy.causes & {"stranger", "second flow"}:
            copy.confirmed |= {one["partition"]: one["offset"] for one in fields.get("confirmed", ())}
        return f"exit {code}"

    def _op_vouch(self, op: Op) -> str:
        """A person says of somebody else's topic that it is whole."""
        name = self._names[op.topic]
        target = self._target_of(name)
        copy = self._copies.get(target)
        if copy is None or copy.owned or target not in self._target or self._live:
            return "-"
        code, command = self._command("accept", str(self._config()), name, "--unconfirmed", "--json")
        if code == 0:
            self._found("I2", "a stranger's topic was accepted", f"{target}: {command.printed[-500:]}")
        return f"exit {code}"

    def _judge_lifted(self, target: str, lifted: Collection[Mapping[str, Any]]) -> None:
        """What stood since the logs are different ones is lifted by a record that both have, unless a person says by
        name that the copy is whole.
        """
        copy = self._copies.get(target)
        if copy is None or copy.compacted or "target deleted" in copy.causes:
            return
        self._read_again()
        source, there = self._source.get(self._names[copy.source]), self._target.get(target)
        for one in lifted:
            number, state = one["partition"], one["state"]
            if state not in {"TRUNCATED", "DIVERGED"} or source is None or there is None:
                continue
            ours, theirs = there.partitions[number].records, source.partitions[number].records
            known = {tuple(record[1:]) for record in theirs.values()}  # without times, which the target may have set
            if not any(tuple(record[1:]) in known for record in ours.values()):
                self._found("I4", "a stop was lifted by nothing", f"{target}-{number}: {state}")

    def _op_adopt(self, op: Op) -> str:
        name = self._names[op.topic]
        code, _ = self._command("adopt", str(self._config()), name)
        if code == 0 and (copy := self._copies.get(self._target_of(name))):
            copy.owned, copy.source_id = True, self._source_id(op.topic)
            copy.others = copy.kept = False
            copy.standing.clear()
            self._read_again()
        return f"exit {code}"

    def _op_pause(self, op: Op) -> str:
        self._paused.add(self._names[op.topic])
        return f"exit {self._command('pause', str(self._config()), self._names[op.topic])[0]}"

    def _op_resume(self, op: Op) -> str:
        self._paused.discard(self._names[op.topic])
        return f"exit {self._command('resume', str(self._config()), self._names[op.topic])[0]}"

    def _op_failover(self, _op: Op) -> str:
        return self._fail_over()

    def _op_failover_astray(self, _op: Op) -> str:
        """One whose source's name leads to the target already."""
        return self._fail_over(astray=True)

    def _fail_over(self, *, astray: bool = False) -> str:
        code, command = self._command("failover", str(self._config(astray=astray)), "--json")
        if code == 2 and self._live:  # its journal is being written again: a person tries again
            time.sleep(HEARD_SECONDS / 2)
            code, command = self._command("failover", str(self._config(astray=astray)), "--json")
        return self._judge_failover(code, command)

    def _judge_failover(self, code: int | None, command: Command) -> str:
        if code not in {0, 4, 7}:
            return f"exit {code}"
        self._failed_over = True
        ended = all(one.wait(15) is not None for one in self._live)
        if code == 0 and not ended:
            self._found("I3", "the mirror did not end", command.printed[-1500:])
        self._read_again()
        reported = self._recorded()
        if code == 0:
            self._equal("failover said 0", reported, "I3")
            self._groups_stand(command)
        return f"exit {code}{self._states(reported)}"

    def _op_failover_killed(self, op: Op) -> str:
        """One that is lost as soon as the journal has it, and another one that finishes it."""
        command = Command(self._folder, "failover", str(self._config()), "--json")
        self._until_logged(command, "failover_recorded")
        command.end()
        if "failover_recorded" not in command.logged:
            return f"exit {command.wait(0)}"
        self._failed_over = True
        was_reported = bool(command.printed)
        reported = self._op_failover(op)
        if reported == "exit 3" and not was_reported:
            self._found("I3", "a failover cannot be finished", command.logged[-1500:])
        return f"killed; {reported}"

    def _until_logged(self, command: Command, event: str) -> None:
        deadline = time.monotonic() + COMMAND_SECONDS
        while command.is_alive and event not in command.logged and time.monotonic() < deadline:
            time.sleep(0.005)

    def _op_translate(self, op: Op) -> str:
        """Where an offset of a source partition is, at a share of what the copy holds: the same record is there."""
        name = self._names[op.topic]
        copy, there = self._copies.get(target := self._target_of(name)), self._target.get(self._target_of(name))
        if there is None or not (log := there.partitions.get(op.partition)):
            return "-"
        asked = str(log.start + (log.end - log.start) * op.amount // 100)
        code, command = self._command(
            "offsets", "translate", str(self._config()), name, str(op.partition), asked, "--json"
        )
        self._read_again()
        now, theirs = self._target.get(target), self._source.get(name)
        if code != 0 or now is None or theirs is None:
            return f"exit {code}"
        found, place = json.loads(command.printed), f"{target}-{op.partition}"
        if copy is None or not copy.owned:
            self._found("I8", "offsets are translated for no copy", f"{place}: {command.printed}")
        elif not self._failed_over and found["target_offset"] >= copy.confirmed.get(op.partition, 0):
            empty, allowed = Log(0, 0, 0), Allowed(own_times=copy.own_times)
            mine = now.partitions.get(op.partition, empty).records.get(found["target_offset"])
            other = theirs.partitions.get(op.partition, empty).records.get(found["source_offset"])
            if mine is not None and other is not None and text_of(mine, allowed) != text_of(other, allowed):
                detail = f"{place}: {command.printed}: {mine.text}, the source's is {other.text}"
                self._found("I8", "an offset is translated to another record", detail)
        return f"exit {code}"

    def _groups_stand(self, command: Command) -> None:
        places = [(name, partition) for name, partition, _, _, _ in self._pairs()]
        for (name, partition), offset in self._world.source.committed(self._group, places).items():
            got = self._groups.get((self._target_of(name), partition))
            log = self._source[name].partitions[partition]
            if self._schedule.translates:
                got = self._moved_back(self._target_of(name), partition, got, offset)
            if got != offset and not (got is not None and got > offset) and log.start <= offset <= log.stable:
                detail = (
                    f"{self._target_of(name)}-{partition}: {got}, the source's at {offset}; {command.printed[-800:]}"
                )
                self._found("I3", "a group does not stand where it stood", detail)

    def _moved_back(self, name: str, partition: int, at: int | None, wanted: int) -> int | None:
        """Where offsets move: which of the source's a group has that stands `at` a place of the copy; `wanted`, unless
        it has before it one that it has read.
        """
        copy = self._copies.get(name)
        if at is None or copy is None:
            return at
        log = self._target[name].partitions[partition]
        again = [max(offsets) for offset, offsets in self._sources_of(copy, partition, log) if offset >= at]
        return min(again, default=wanted) if any(one < wanted for one in again) else wanted

    def _op_undo(self, _op: Op) -> str:
        if not self._failed_over:
            return "-"
        code, _ = self._command("failover", str(self._config()), "--undo")
        if code == 0:
            self._failed_over = False
        return f"exit {code}"

    def _op_rename(self, _op: Op) -> str:
        """Other names on the target, from the next start on."""
        if self._live:
            return "-"
        self._prefix = "" if self._prefix else "p."
        self._flow_causes.add("renamed")
        return "renamed"

    def _op_continue_on_loss(self, _op: Op) -> str:
        if self._live:
            return "-"
        self._continues = True
        for copy in self._copies.values():
            copy.standing = {number: state for number, state in copy.standing.items() if state != "RETENTION_GAP"}
        return "on_data_loss: continue"

    def _judge_losses(
        self, place: str, copy: Copy, losses: Collection[tuple[int, int]], damaged: Collection[tuple[int, int]]
    ) -> None:
        """What is left out for damage is the batch, and never more."""
        if not damaged or copy.causes & {"source expired", "source cut", "source recreated", "target cut"}:
            return
        for first, following in losses:
            if not any(begin <= first and following <= end for begin, end in damaged):
                self._found("I1", "more is left out than is damaged", f"{place}: {first} to {following} of {damaged}")

    def _op_leave_out(self, _op: Op) -> str:
        if self._live:
            return "-"
        self._skips_damage = True
        for copy in self._copies.values():
            copy.standing = {number: state for number, state in copy.standing.items() if state != "CORRUPT"}
        return "on_damage: skip"

    def _op_reload_bad(self, _op: Op) -> str:
        if not self._live:
            return "-"
        path = self._config(include=f"{self._tag}\\.nothing")
        text = path.read_text()
        self._live[-1].send(signal.SIGHUP)
        time.sleep(1.5)
        path.write_text(text)
        self._config()
        return "read a configuration that fits nothing"

    def _op_reload_good(self, op: Op) -> str:
        if not self._live or len(self._names) < 2:
            return "-"
        if op.kind == "exclude":
            self._excluded = not self._excluded
        self._config()
        self._live[-1].send(signal.SIGHUP)
        time.sleep(1.0)
        return f"read again: {op.kind}"

    # --- the source ---------------------------------------------------------------------------------------------------

    def _source_log(self, op: Op) -> tuple[str, int, Log] | None:
        name = self._names[op.topic]
        topic = self._source.get(name)
        if topic is None:
            return None
        partition = op.partition % len(topic.partitions)
        return name, partition, topic.partitions[partition]

    def _cause(self, number: int, cause: str) -> None:
        self._source_causes[self._names[number]].add(cause)
        for copy in self._copies.values():
            if copy.source == number:
                copy.causes.add(cause)

    def _keep(self, number: int) -> None:
        """From now on, what is done to a source must not reach a copy that holds records of somebody else."""
        for copy in self._copies.values():
            copy.kept |= copy.others and copy.source == number and copy.source_id == self._source_id(number)

    def _op_produce(self, op: Op) -> str:
        if (found := self._source_log(op)) is None:
            return "-"
        name, partition, _ = found
        if op.kind == "old" and self._kind(op.topic) != "compact":
            self._cause(op.topic, "old")
            if self._kind(op.topic) != "forever":
                self._cause(op.topic, "source expired")
                self._expires(op.topic)
        chance = Random(f"{self._schedule.seed} {self._place}")
        value = f"s{self._schedule.seed}.{self._place}"
        delivered = self._world.source.produce(name, partition, op.amount, op.kind, chance, value)
        # before a read: what retention deletes at once is never seen in the source's log
        self._history.setdefault((name, partition), {}).update(delivered)
        return "done"

    def _op_alike(self, op: Op) -> str:
        return self._op_produce(replace(op, amount=max(3, op.amount // 3 * 3), kind="alike"))

    def _expires(self, number: int) -> None:
        """The source deletes by age from now on, and so do its copies, but for one that has what the source lost."""
        for copy in self._copies.values():
            follows = copy.owned and copy.source_id == self._source_id(number)
            alone = "TRUNCATED" in copy.standing.values()
            copy.expires |= copy.source == number and follows and not alone

    def _op_commit(self, op: Op) -> str:
        positions: dict[tuple[str, int], int] = {}
        for name, topic in self._source.items():
            for partition, log in topic.partitions.items():
                at = log.start + (log.stable - log.start) * op.amount // 100
                read = self._read.get((topic.id, partition), 0)
                at = max(at, min(read, log.stable))
                positions[name, partition] = at
                self._read[topic.id, partition] = max(at, read)
        if not positions:
            return "-"
        self._world.source.commit(self._group, positions)
        return f"at {', '.join(map(str, positions.values()))}"

    def _op_expire_source(self, op: Op) -> str:
        if (found := self._source_log(op)) is None or self._kind(op.topic) == "compact":
            return "-"
        name, partition, log = found
        before = log.start + (log.stable - log.start) * op.amount // 100
        if before <= log.start:
            return "-"
        self._cause(op.topic, "source expired")
        self._world.source.expire(name, partition, before)
        return f"{name}-{partition} before {before} of {log.end}"

    def _op_cut_source(self, op: Op) -> str:
        if (found := self._source_log(op)) is None:
            return "-"
        name, partition, log = found
        ends = [log.start, *(end for end in self._world.ends("source", name, partition) if end > log.start)]
        below = ends[(len(ends) - 1) * min(op.amount, 90) // 100]
        if below >= log.end:
            return "-"
        self._cause(op.topic, "source cut")
        self._world.crash("source", name, partition, below)
        self._crashed()
        return f"{name}-{partition} from {log.end} to {below}"

    def _op_recreate(self, op: Op) -> str:
        name = self._names[op.topic]
        self._cause(op.topic, "source recreated")
        self._former_settings[self._place, op.topic] = TOPIC_CONFIGS[self._kind(op.topic)]
        kind = op.kind or "default"
        self._world.source.delete(name)
        self._forget_damage("source", name)
        self._world.source.create(name, 1 + op.partition, TOPIC_CONFIGS[kind])
        self._source_configs[name] = kind
        self._source_causes[name] -= {"old", "source cut", "source expired"}
        for place in [place for place in self._history if place[0] == name]:
            del self._history[place]
            self._former.pop(place, None)
        if kind == "short":
            self._source_causes[name].add("source expired")
        return f"as {kind}, {1 + op.partition} partitions"

    def _op_delete_source(self, op: Op) -> str:
        if op.topic == 0:  # the one that keeps the flow alive
            return "-"
        self._keep(op.topic)
        self._cause(op.topic, "source deleted")
        self._cause(op.topic, "source recreated")
        self._world.source.delete(self._names[op.topic])
        for place in [place for place in self._history if place[0] == self._names[op.topic]]:
            del self._history[place]
        return "deleted"

    def _next_name(self) -> str:
        return f"{self._tag}.{'abc'[len(self._names)]}" if len(self._names) < len("abc") else ""

    def _op_appear(self, op: Op) -> str:
        """A topic more, with records."""
        if not (name := self._next_name()):
            return "-"
        self._names.append(name)
        self._source_configs[name], self._source_causes[name] = "forever", set()
        self._world.source.create(name, 1, TOPIC_CONFIGS["forever"])
        self._world.source.produce(name, 0, 1 + op.amount // 10, "plain", Random(op.amount), f"n{self._place}")
        return name

    def _op_grow(self, op: Op) -> str:
        if (found := self._source_log(op)) is None:
            return "-"
        count = len(self._source[found[0]].partitions) + 1
        if count > 3:
            return "-"
        self._world.source.grow(found[0], count)
        return f"to {count}"

    def _op_configure(self, op: Op) -> str:
        if (found := self._source_log(op)) is None or not op.kind:
            return "-"
        name, _, _ = found
        self._keep(op.topic)
        self._world.source.configure(name, TOPIC_CONFIGS[op.kind])
        self._source_configs[name] = op.kind
        for copy in self._copies.values():
            if copy.source == op.topic and copy.source_id == self._source_id(op.topic):
                copy.own_times |= op.kind == "append"
                copy.compacted |= op.kind == "compact"
        if op.kind == "short" or (self._has_old(op.topic) and op.kind != "forever"):
            self._cause(op.topic, "source expired")
            self._expires(op.topic)
        return f"as {op.kind}"

    def _op_set_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None or not op.kind:
            return "-"
        name, _, _, copy = found
        copy.causes.add("target set")
        target = self._world.target
        target.configure(name, target.configs(name) | COPY_CONFIGS[op.kind])
        self._rebase()
        return f"{name} {op.kind}"

    def _op_grow_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, _, _, copy = found
        count = len(self._target[name].partitions) + 1
        if count > 3:
            return "-"
        copy.causes.add("target grown")
        self._world.target.grow(name, count)
        self._rebase()
        return f"{name} to {count}"

    def _op_damage_source(self, op: Op) -> str:
        if (found := self._source_log(op)) is None:
            return "-"
        name, partition, log = found
        batch = self._world.damage("source", name, partition, log.start, op.amount)
        if batch is None:
            return "-"
        self._damaged["source"].setdefault((name, partition), set()).symmetric_difference_update(
            {batch}
        )  # a second one
        self._cause(op.topic, "source damaged")  # turns the same bit back
        return f"{name}-{partition} from {batch[0]} to before {batch[1]} of {log.end}"

    def _damage(self, side: Side, place: Place, log: Log) -> list[tuple[int, int]]:
        """What is damaged of what a log still has: offsets from and to before."""
        found = self._damaged[side].get(place, ())
        return [(first, following) for first, following in found if log.start < following and first < log.end]

    def _forget_damage(self, side: Side, name: str) -> None:
        for place in [place for place in self._damaged[side] if place[0] == name]:
            del self._damaged[side][place]

    def _crashed(self) -> None:
        """A broker that crashed cut its logs to before what is damaged in them."""
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

    def _op_restore(self, op: Op) -> str:
        """Into other topics, from the disk of the source's broker, which is not gone."""
        prefix, flow = f"r{self._place}.", f"{self._tag}-r{self._place}"
        time.sleep(RESTORE_SECONDS)
        path, folder = self._config(flow, prefix=prefix), self._world.folder_of("source")
        skips = ("--skip-damage",) if op.partition else ()
        code, command = self._command("restore", str(path), "--from", str(folder), "--json", *skips)
        if code == 2 and "No such file" in command.logged:
            return "met a folder of another schedule that the broker deleted"
        self._read_again()
        there = self._readers["target"].topics([f"{prefix}{name}" for name in self._source])
        output = found_in(self._readers["target"].entries(f"mirror.{flow}.offsets"))
        is_damaged = False
        for name, topic in self._source.items():
            if self._excluded and name == self._names[-1]:
                continue
            for partition, log in topic.partitions.items():
                if self._damage("source", (name, partition), log):
                    is_damaged = True
                elif log.stable == log.end:
                    self._judge_restored(code, there.get(f"{prefix}{name}"), name, partition, output)
        if code == 0 and is_damaged:
            self._found("I8", "restored over damage", command.printed[-1500:])
        is_whole = not is_damaged and all(log.stable == log.end for _, _, log, _, _ in self._pairs())
        if code not in {0, 3} and is_whole and not any(self._source_causes.values()):
            self._found("I7", f"restore ended with {code}", f"{command.printed[-1500:]} {command.logged[-1500:]}")
        return f"exit {code}"

    def _judge_restored(
        self, code: int | None, there: Topic | None, name: str, partition: int, expected: Recorded
    ) -> None:
        if there is None or partition not in there.partitions:
            if code == 0 and self._source[name].partitions[partition].stable:
                self._found("I8", "restored without a partition", f"{name}-{partition}")
            return
        number = self._names.index(name)
        kind, log = self._kind(number), self._source[name].partitions[partition]
        expires = kind == "short" or (kind in {"default", "week", "small", "segments"} and self._has_old(number))
        allowed = Allowed(
            start=None if expires else 0,
            losses=tuple(expected.losses.get((f"r{self._place}.{name}", partition), ())),
            history=self._history.get((name, partition), {}),
            former=self._former.get((name, partition), {}),
            own_times=kind == "append",
            compacted=kind == "compact",
        )
        if code == 0:
            compare = moved_differences if self._schedule.translates else differences
            for one in compare(f"r{self._place}.{name}-{partition}", log, there.partitions[partition], allowed):
                self._add(Finding("I8", f"restored with 0: {one.what}", one.detail))

    # --- the target ---------------------------------------------------------------------------------------------------

    def _op_damage_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, partition, log, copy = found
        batch = self._world.damage("target", name, partition, log.start, op.amount)
        if batch is None:
            return "-"
        self._damaged["target"].setdefault((name, partition), set()).symmetric_difference_update({batch})
        copy.causes.add("target damaged")
        return f"{name}-{partition} from {batch[0]} to before {batch[1]} of {log.end}"

    def _target_log(self, op: Op) -> tuple[str, int, Log, Copy] | None:
        name = self._target_of(self._names[op.topic])
        topic, copy = self._target.get(name), self._copies.get(name)
        if topic is None or copy is None:
            return None
        partition = op.partition % len(topic.partitions)
        return name, partition, topic.partitions[partition], copy

    def _op_expire_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, partition, log, copy = found
        before = log.start + (log.end - log.start) * op.amount // 100
        if before <= log.start or self._kind(op.topic) == "compact":
            return "-"
        copy.causes.add("target expired")
        copy.others = copy.kept = False  # they may be gone
        if copy.start.get(partition, 0) is not None:
            copy.start[partition] = before
        self._expired = True
        self._world.target.expire(name, partition, before)
        return f"{name}-{partition} before {before} of {log.end}"

    def _op_cut_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, partition, log, copy = found
        ends = [log.start, *(end for end in self._world.ends("target", name, partition) if end > log.start)]
        below = ends[(len(ends) - 1) * min(op.amount, 90) // 100]
        if below >= log.end:
            return "-"
        copy.causes.add("target cut")
        copy.others = copy.kept = False
        self._world.crash("target", name, partition, below)
        logs = self._readers["target"].topics([name])[name].partitions
        self._cut_from[name, partition] = min(below, logs[partition].end)  # one that was made just now may be empty
        if not copy.owned and not any(log.end for log in logs.values()):  # an empty one may be taken over
            copy.owned, copy.source_id = True, self._source_id(copy.source)
            copy.causes.discard("source recreated")  # that was before
            copy.causes.add("foreign")  # a live mirror may not have looked again
            self._rebase()
        self._crashed()
        return f"{name}-{partition} from {log.end} to {below}"

    def _op_cut_journal(self, op: Op) -> str:
        journal = f"mirror.{self._tag}.offsets"
        topic = self._readers["target"].topics([journal]).get(journal)
        if topic is None or not (end := topic.partitions[0].end):
            return "-"
        ends = [0, *self._world.ends("target", journal, 0)]
        below = ends[(len(ends) - 1) * min(op.amount, 90) // 100]
        self._journal_lost()
        self._world.crash("target", journal, 0, below)
        self._crashed()
        return f"from {end} to {below}"

    def _op_delete_journal(self, _op: Op) -> str:
        self._journal_lost()
        self._world.target.delete(f"mirror.{self._tag}.offsets")
        return "deleted"

    def _op_set_journal(self, op: Op) -> str:
        journal, target = f"mirror.{self._tag}.offsets", self._world.target
        if not op.kind or journal not in target.admin.list_topics(timeout=10).topics:
            return "-"
        target.configure(journal, target.configs(journal) | JOURNAL_CONFIGS[op.kind])
        return op.kind

    def _journal_lost(self) -> None:
        self._flow_causes.add("journal lost")
        self._failed_over = False
        for copy in self._copies.values():
            copy.standing.clear()

    def _op_delete_target(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, _, _, copy = found
        copy.causes.add("target deleted")
        self._deleted_settings.setdefault(name, {}).update(self._configs.get(name, {}))
        self._world.target.delete(name)
        self._forget_damage("target", name)
        self._rebase()
        return "deleted"

    def _op_stranger_writes(self, op: Op) -> str:
        if (found := self._target_log(op)) is None:
            return "-"
        name, partition, _, copy = found
        copy.causes.add("stranger")
        amount = 1 + op.amount // 10
        self._world.target.produce(name, partition, amount, op.kind, Random(op.amount), f"z{self._place}")
        copy.others |= copy.source_id == self._id_of(copy)
        self._rebase()
        return f"{amount} to {name}-{partition}"

    def _op_stranger_topic(self, op: Op) -> str:
        """Somebody's topic of the name that a copy would have."""
        name = self._target_of(self._names[op.topic])
        if name in self._target or name.replace(".", "_") in self._strangers:
            return "-"
        self._world.target.create(name, 1, {"retention.ms": "-1"})
        if op.amount:
            self._world.target.produce(name, 0, op.amount, "old", Random(op.amount), f"z{self._place}")
        self._copies[name] = Copy(op.topic, owned=not op.amount, source_id=self._source_id(op.topic))
        if op.amount:
            self._copies[name].causes.add("stranger")
        else:
            self._follow_source(self._copies[name])
        self._rebase()
        return f"{name} with {op.amount}"

    def _op_clash(self, op: Op) -> str:
        """A topic whose name is another one's but for a dot, which Kafka refuses: a source topic's, or that of the one
        that appears next.
        """
        name = self._target_of(self._names[op.topic])
        if name in self._target and (following := self._next_name()):
            name = self._target_of(following)
        other = name.replace(".", "_")
        if name in self._target or other in self._strangers:
            return "-"
        self._flow_causes.add("clash")
        try:
            self._world.target.create(other, 1, {"retention.ms": "-1"})
        except KafkaException as problem:
            if problem.args[0].code() != KafkaError.TOPIC_EXCEPTION:
                raise
            return "the mirror was first"
        self._strangers.add(other)
        self._copies[other] = Copy(op.topic, owned=False)
        self._rebase()
        return other

    # --- both ---------------------------------------------------------------------------------------------------------

    def _op_hang(self, op: Op) -> str:
        side: Side = SIDES[op.partition]
        self._world.hang(side)
        self._crashed()
        return f"the {side} hung"


OPERATIONS: Final[frozenset[str]] = frozenset(
    name.removeprefix("_op_") for name in vars(_Player) if name.startswith("_op_")
)
Play = Callable[[World, Schedule], Played[Schedule]]
