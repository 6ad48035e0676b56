"""Holds what the mirror did and said against both sides."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from .driving import Command
from .journal import PASSING, STOPS, Recorded, Standing
from .judging import Allowed, Finding, differences, moved_differences, vanished
from .logs import Log, Topic
from .memory import EPOCH_SECONDS, Copy, Memory
from .operations import DISTURBING

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
#: What a preflight may refuse a flow for.
REFUSABLE: Final = frozenset(
    {"foreign", "clash", "journal lost", "second flow", "failed over", "source deleted", "source recreated"}
    | {"stranger", "target cut", "source cut", "target set"}
)
#: Causes of losses besides damage.
LOSSES: Final = frozenset({"source expired", "source cut", "source recreated", "target cut"})
#: In which a live mirror hears of what was accepted, on a slow machine too.
HEARD_SECONDS: Final = 60.0
#: Within which a task that lasts sees that it lost its connection to the target.
SEEN_SECONDS: Final = 3.0


class Judge(Memory):
    """Judges after each operation, and what commands and reports say."""

    def _judge(self) -> None:
        """Hold what is on the target now against what was there at the last read."""
        before, configs, groups = self._baseline
        self._read_logs()
        for name, topic in before.items():
            if (copy := self._copies.get(name)) is None:
                continue
            now = self._target.get(name)
            if now is None or now.id != topic.id:
                if "target deleted" not in copy.causes and not self._may_delete(copy):
                    self._found("I1", "a topic was deleted", f"{name}: {self._owner(copy)}")
                continue
            self._judge_settings(name, copy, topic, now, configs[name])
            for partition, log in topic.partitions.items():
                place, present = f"{name}-{partition}", now.partitions[partition]
                if self._is_over and "second flow" not in self._flow_causes and present.end > log.end:
                    self._found("I3", "copied on after a failover", f"{place}: from {log.end} to {present.end}")
                begin, end = self._begin_of(copy, partition), self._cut_from.get((name, partition))
                self._played.findings += vanished(place, log, present, begin, end, compacted=copy.compacted)
        for name in self._target:
            self._adopt_new(name)
        self._judge_groups(groups)
        self._cut_from.clear()
        self._expired = False
        self._judge_live()
        self._baseline = self._target, self._configs, self._groups

    @property
    def _operation(self) -> str:
        return self._schedule.operations[self._place].name

    @property
    def _is_over(self) -> bool:
        """The flow was failed over before this operation."""
        return self._failed_over and not self._operation.startswith(("failover", "asleep"))

    def _may_delete(self, copy: Copy) -> bool:
        return copy.owned and not copy.kept and self._schedule.deletes and "source deleted" in copy.causes

    def _begin_of(self, copy: Copy, partition: int) -> int | None:
        """Return up to where records of a copy may be gone, None for anywhere: one that began behind its source's start
        has padding before that.
        """
        start = None if copy.expires else copy.start.get(partition, 0)
        source = self._source.get(self._names[copy.source])
        if start is None or not copy.owned or "source recreated" in copy.causes or source is None:
            return start
        return max(start, source.partitions[partition].start if partition in source.partitions else 0)

    def _judge_settings(self, name: str, copy: Copy, before: Topic, now: Topic, was: dict[str, str]) -> None:
        # a flow that was failed over claims nothing any more
        is_free = (self._is_over and self._operation == "second") or "journal lost" in self._flow_causes
        if is_free and not any(log.end for log in before.partitions.values()):
            copy.source_id = self._source_id(copy.source)  # nobody knows whose it was, and it holds nothing
            self._follow_source(copy)
        if copy.owned and not copy.kept and self._is_of_now(copy):
            return
        why, configs = self._owner(copy), self._configs[name]
        known = [self._former_settings.get((self._place, copy.source), {})]  # on their way as the topic was deleted
        if self._operation in DISTURBING:
            # Kafka 4.3.0 gives a topic the settings of the one that had its name before, once it is restarted
            known.append(self._deleted_settings.get(name, {}))
        changed = [
            key
            for key in sorted(was.keys() | configs.keys())
            if was.get(key) != configs.get(key) and not any(each.get(key) == configs.get(key) for each in known)
        ]
        if changed:
            text = ", ".join(f"{key}: {was.get(key)} is now {configs.get(key)}" for key in changed)
            self._found("I1", "settings were changed", f"{name} ({why}): {text}")
        if len(now.partitions) != len(before.partitions):
            counts = f"{len(before.partitions)} to {len(now.partitions)}"
            self._found("I1", "partitions were added", f"{name} ({why}): {counts}")
        ends = {partition: log.end for partition, log in before.partitions.items()}
        if not copy.owned and any(log.end > ends.get(partition, -1) for partition, log in now.partitions.items()):
            self._found("I1", "a stranger's topic was written to", name)

    def _judge_groups(self, before: Mapping[tuple[str, int], int]) -> None:
        for (name, partition), offset in self._groups.items():
            if before.get((name, partition)) == offset:
                continue
            log, copy = self._target[name].partitions[partition], self._copies.get(name)
            place = f"{name}-{partition}: {self._group} at {offset}"
            if offset > log.end and (name, partition) not in self._cut_from:
                self._found("I5", "a group is beyond the end", f"{place}, the log ends at {log.end}")
            if offset < log.start and (copy is None or not copy.expires) and not self._expired:
                self._found("I5", "a group is below the start", f"{place}, the log starts at {log.start}")
            if copy is None:
                continue
            read = self._read.get((copy.source_id, partition), 0)
            if self._schedule.translates:
                sources = self._sources_of(copy, partition, log)
                unread = [mine for mine, offsets in sources if mine < offset and min(offsets) >= read]
                if unread:
                    detail = f"{place}, not read: {len(unread)} from {unread[0]}"
                    self._found("I5", "a group is ahead of its reader", detail)
            elif offset > max(read, log.start):
                self._found("I5", "a group is ahead of its reader", f"{place}, read up to {read}")

    def _judge_live(self) -> None:
        """A live mirror goes on until somebody ends it."""
        for command in [command for command in self._live if not command.is_alive]:
            self._live.remove(command)
            code = command.wait(1)
            if code == 1 or (code is not None and code < 0):
                self._found("I9", "a live mirror died", f"exit {code}: {command.logged[-1500:]}")
            elif code == 0 and not self._failed_over:
                self._found("I7", "a live mirror ended with 0", command.logged[-1500:])
            elif code == 3:
                self._judge_refusal(command)

    def _judge_refusal(self, command: Command) -> None:
        met = set(self._flow_causes)
        for copy in self._copies.values():
            met |= copy.causes | ({"foreign"} if not copy.owned else set())
        if not met & REFUSABLE and not self._failed_over:
            self._found("I7", "refused without a cause", command.logged[-1500:])

    def _unequal(self, recorded: Recorded) -> list[Finding]:
        """Return in what both sides differ, partition by partition."""
        compare = moved_differences if self._schedule.translates else differences
        found: list[Finding] = []
        for name, partition, log, copied, copy in self._pairs():
            place = f"{name}-{partition}"
            if copied is None or copy is None:
                if log.stable > log.start:
                    found.append(Finding("I2", "there is no copy", place))
                continue
            allowed = Allowed(
                start=None if copy.expires else copy.start.get(partition, 0),
                losses=tuple(recorded.losses.get((name, partition), ())),
                history=self._history.get((name, partition), {}),
                former=self._former.get((name, partition), {}),
                copied=self._copied.get((self._target[name].id, partition)),
                confirmed=copy.confirmed.get(partition, 0),
                own_times=copy.own_times,
                compacted=copy.compacted,
            )
            damaged = self._damage("source", (name, partition), log)
            for first, following in allowed.losses if damaged and not copy.causes & LOSSES else ():
                if not any(begin <= first and following <= end for begin, end in damaged):
                    detail = f"{place}: {first} to {following} of {damaged}"
                    self._found("I1", "more is left out than is damaged", detail)
            found += compare(place, log, copied, allowed)
        return found

    def _equal(self, said: str, recorded: Recorded, invariant: str = "I2") -> None:
        """Something was said that implies equality."""
        for found in self._unequal(recorded):
            self._found(invariant, found.what, f"{said}, but {found.detail}")

    @staticmethod
    def _states(recorded: Recorded) -> str:
        found = {f"{standing.state}@{standing.next_offset}" for standing in recorded.states.values()}
        return f" {' '.join(sorted(found))}"

    def _judge_states(self, recorded: Recorded, command: Command) -> None:
        """Stops name causes that there are, and stay."""
        for (name, partition), standing in recorded.states.items():
            copy = self._copies.get(name)
            if copy is None or standing.at_ms < int(command.began * 1000) or self._names[copy.source] in self._paused:
                continue
            if standing.state in STOPS:
                self._judge_stop(name, partition, standing, copy)
            elif partition in copy.standing and standing.state in {"MIRRORING", "CAUGHT_UP", "PADDING"}:
                detail = f"{name}-{partition}: {copy.standing[partition]}, now {standing.state}"
                self._found("I6", "a stop lifted itself", detail)

    def _judge_stop(self, name: str, partition: int, standing: Standing, copy: Copy) -> None:
        state, detail = standing.state, f"{name}-{partition}: {standing.state}: {standing.detail}"
        causes = REFUSABLE if state == "REFUSED" else CAUSES.get(state, frozenset())
        met = copy.causes | self._flow_causes | self._source_causes[self._names[copy.source]]
        met |= set() if copy.owned else {"foreign"}
        if state == "REFUSED" and copy.compacted and "target deleted" in met:
            causes |= {"source expired"}  # what begins behind 0 cannot be compacted
        if state == "DIVERGED" and met & {"source expired", "target expired"}:
            causes |= {"journal lost"}  # nothing is left that could confirm the copy
        if not causes & met:
            self._found("I4", f"{state} without its cause", f"{detail}; after {sorted(met) or 'nothing'}")
        is_known = copy.owned and "journal lost" not in self._flow_causes
        clashes = name.replace(".", "_") in self._strangers
        if state == "REFUSED" and is_known and not clashes and "source recreated" in copy.causes:
            self._found("I4", "REFUSED in place of RECREATED", detail)
        if state in PASSING:
            return
        if self._promised.get(name) == self._place - 1 and not self._live:
            self._found("I7", "what was accepted stops again", detail)
        if name in self._target and time.monotonic() - copy.resolved_at > HEARD_SECONDS:
            copy.standing[partition] = state

    def _judge_lifted(self, name: str, lifted: Collection[Mapping[str, Any]]) -> None:
        """What stood since the logs are different ones is lifted by a record that both have, unless a person says by
        name that the copy is whole.
        """
        copy = self._copies.get(name)
        if copy is None or copy.compacted or "target deleted" in copy.causes:
            return
        self._read_again()
        source, target = self._source.get(name), self._target.get(name)
        for stop in lifted:
            number, state = stop["partition"], stop["state"]
            if state not in {"TRUNCATED", "DIVERGED"} or source is None or target is None:
                continue
            # without times, which the target may have set
            held, copied = (
                {record[1:] for record in topic.partitions[number].records.values()} for topic in (source, target)
            )
            if not held & copied:
                self._found("I4", "a stop was lifted by nothing", f"{name}-{number}: {state}")

    def _restless(self, recorded: Recorded, command: Command) -> list[str]:
        """Say what is not at rest."""
        found = list[str]()
        stopped = {name for (name, _), report in recorded.states.items() if report.state in STOPS}
        for name, partition, log, _, copy in self._pairs():
            place, report = f"{name}-{partition}", recorded.states.get((name, partition))
            if report is None or report.at_ms < command.began * 1000:
                # a further partition of a topic that is stopped (G4), paused or was recreated has no copy
                is_recreated = copy is not None and "source recreated" in copy.causes
                if name not in stopped | self._paused and not is_recreated:
                    found.append(f"{place} is not reported")
            elif not self._schedule.lasts and report.at_ms < (self._disturbed_at + 2 * EPOCH_SECONDS) * 1000:
                found.append(f"{place} is {report.state}, and was not looked at since")
            elif self._schedule.lasts and time.time() < self._disturbed_at + SEEN_SECONDS:
                found.append(f"{place} is {report.state}, and the target's broker may just have been lost")
            elif not self._is_at_rest(report, log):
                ends = f"the source ends at {log.stable}: {report.detail}"
                found.append(f"{place} is {report.state} at {report.next_offset}, {ends}")
        return found

    @staticmethod
    def _is_at_rest(report: Standing, log: Log) -> bool:
        if report.state in STOPS or report.state == "PAUSED":
            return True
        # it is caught up once a fetch of nothing is answered, for which a task may live too short
        if report.state == "MIRRORING" and log.stable == 0:
            return True
        if report.state == "STARTING":
            return not log.stable
        return report.state in {"CAUGHT_UP", "MIRRORING"} and report.next_offset == log.stable

    def _caught_up(self, recorded: Recorded, command: Command) -> None:
        """Ask that what a command says to be caught up is equal, but for what a task that lasts need not see."""
        if self._is_unseen:
            return
        said = {
            f"{name}-{number}"
            for (name, number), report in recorded.states.items()
            if report.state == "CAUGHT_UP" and report.at_ms >= command.began * 1000
        }
        for found in self._unequal(recorded):
            if found.detail.split(":")[0] in said:
                self._found("I2", found.what, f"CAUGHT_UP was said, but {found.detail}")

    def _judge_failover(self, code: int | None, command: Command) -> str:
        if code not in {0, 4, 7}:
            return f"exit {code}"
        self._failed_over = True
        has_ended = all(mirror.wait(self._timeout_s) is not None for mirror in self._live)
        if code == 0 and not has_ended:
            self._found("I3", "the mirror did not end", command.printed[-1500:])
        self._read_again()
        recorded = self._recorded()
        if code == 0:
            self._equal("failover said 0", recorded, "I3")
            self._judge_moved_groups(command)
        return f"exit {code}{self._states(recorded)}"

    def _judge_moved_groups(self, command: Command) -> None:
        """After a failover that says 0, groups stand where they stood on the source."""
        places = [(name, partition) for name, partition, _, _, _ in self._pairs()]
        for (name, partition), offset in self._world.source.committed(self._group, places).items():
            found, log = self._groups.get((name, partition)), self._source[name].partitions[partition]
            if self._schedule.translates:
                found = self._moved_back(name, partition, found, offset)
            if (found is None or found < offset) and log.start <= offset <= log.stable:
                detail = f"{name}-{partition}: {found}, the source's at {offset}; {command.printed[-800:]}"
                self._found("I3", "a group does not stand where it stood", detail)

    def _moved_back(self, name: str, partition: int, offset: int | None, wanted: int) -> int | None:
        """Return which of the source's offsets a group has that stands at an `offset` of the copy: `wanted`, unless a
        record comes next that it has read.
        """
        copy = self._copies.get(name)
        if offset is None or copy is None:
            return offset
        log = self._target[name].partitions[partition]
        again = [max(sources) for mine, sources in self._sources_of(copy, partition, log) if mine >= offset]
        return min(again, default=wanted) if any(source < wanted for source in again) else wanted
