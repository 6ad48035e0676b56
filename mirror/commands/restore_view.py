"""What `mirror restore` found and did, for people and for scripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from mirror.errors import ExitCode
from mirror.kafka.cluster import Endpoint, TopicPartition
from mirror.kafka.topic_configs import RETENTION
from mirror.names import first_of
from mirror.policy.remedies import set_configs
from mirror.policy.rules import Finding, Severity
from mirror.rendering import Field, console, count, json_rows, keys, number, plain, state_text, table_of
from mirror.segments.restore import UNLIMITED, GroupsReport, Restored
from mirror.topics.configs import SettingsPlan
from mirror.topics.reconcile import TopicPlan

#: Groups of which each is named, to a person.
_NAMED: Final = 50
#: What nobody knows of a lost topic, as a command has it.
_TO_FILL_IN: Final = {"retention.ms": "MS", "retention.bytes": "BYTES"}


@dataclass(slots=True)
class Report:
    """Says what a restore found and did."""

    #: The topics.
    plan: TopicPlan
    #: Where they go.
    target: Endpoint
    #: The settings of each target topic before anything was written.
    configs: Mapping[str, Mapping[str, str]]
    #: The folders of each partition that is restored.
    wanted: Mapping[TopicPartition, Sequence[Path]]
    #: Partitions without a folder.
    missing: Sequence[TopicPartition]
    #: Nothing was written.
    dry_run: bool
    #: What was left out before anything was read, and what could not be read of the cluster's own logs.
    notes: Sequence[str] = ()
    #: By target topic, what becomes of its settings; None where they were not asked for or not found.
    settings: Mapping[str, SettingsPlan] | None = None
    #: By target topic, why settings that should be set were not.
    unset: Mapping[str, str] = field(default_factory=dict)
    #: What becomes of the groups; None where they were not asked for or not found.
    groups: GroupsReport | None = None
    #: Who took the flow over before settings or groups were changed, which then stay as they are; else empty.
    taken: str = ""
    #: What became of each partition.
    results: list[Restored] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """4 where anything is missing or damaged, or a group does not go on where it stood."""
        is_stopped = any(restored.figures is not None and restored.figures.state.is_stop for restored in self.results)
        if self.missing or is_stopped or any(restored.at_risk for restored in self.results):
            return ExitCode.DATA_AT_RISK
        if self.taken:
            return ExitCode.CLUSTER
        if self.groups is not None and not self.groups.is_whole:
            return ExitCode.DATA_AT_RISK
        if self.dry_run:
            return ExitCode.CHANGES
        is_done = all(restored.is_whole for restored in self.results) and not self.unset
        return ExitCode.DONE if is_done else ExitCode.CLUSTER

    @property
    def made(self) -> set[str]:
        """Target topics that this restore makes."""
        return {creation.topic for creation in self.plan.creations}

    @property
    def kept(self) -> dict[str, str]:
        """Target topics of which nothing expires, each with the command that sets what it shall have instead."""
        keeping = [
            pair.target for pair in self.plan.pairs if UNLIMITED.items() <= self.configs.get(pair.target, {}).items()
        ]
        # of those nothing expired either, by their own settings
        had_none = [topic for topic, plan in (self.settings or {}).items() if UNLIMITED.items() <= plan.found.items()]
        return {topic: self._give_back(topic) for topic in keeping if topic not in had_none}

    def _give_back(self, topic: str) -> str:
        known = (self.settings or {}).get(topic)
        if known is None:
            return set_configs(self.target, topic, _TO_FILL_IN)
        return set_configs(self.target, topic, {**known.held, **{name: _TO_FILL_IN[name] for name in known.by_default}})

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "partitions": json_rows(self._fields(), self.results),
            "create": sorted(self.made),
            "missing": [*map(str, self.missing)],
            "never_expire": self.kept,
            "advice": [str(finding) for finding in self._advice()],
            "notes": [*self.notes],
            "taken_over": self.taken,
            "settings": self.settings and {topic: self._settings(plan) for topic, plan in self.settings.items()},
            "groups": None if self.groups is None else _groups(self.groups),
        }

    def _settings(self, plan: SettingsPlan) -> dict[str, Any]:
        """Nothing is set of a topic that is not whole, and `applied` says what would be in a dry run."""
        changes = {c.name: c.after for c in plan.changes}
        return {
            "found": dict(plan.found),
            "applied": {} if plan.topic in self.unset else changes,
            "not_applied": changes if plan.topic in self.unset else {},
            "held": dict(plan.held),
            "left": dict(plan.left),
            "problem": self.unset.get(plan.topic, ""),
            "command": self._give_back(plan.topic) if plan.held or plan.by_default else "",
        }

    def print(self) -> None:
        """The same for people."""
        out = console()
        out.print(table_of(self._fields(), self.results))
        for text, style in self._lines():
            out.print(Text(plain(text), style), soft_wrap=True)

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield what stands below the table, each line with its style."""
        for one in self.results:
            for text in filter(None, _notes(one, dry_run=self.dry_run)):
                yield f"{one.assignment.source}: {text}", "red" if one.at_risk else "yellow"
        yield from ((str(finding), "yellow") for finding in self._advice())
        if self.missing:
            names = first_of([*map(str, self.missing)])
            yield f"no replica in these folders of {names}: name the folders of other brokers, too", "red"
        if self.taken:
            yield f"settings and groups that are not named were left as they are: {self.taken}", "red"
        yield from ((text, "") for text in self._settings_lines())
        for topic, command in self.kept.items():
            text = f"{topic} keeps every record (retention.ms=-1, retention.bytes=-1) until you set what it had"
            yield f"{text}{self._retention(topic)}. What is older is deleted then: {command}", ""
        if self.groups is not None:
            style = "" if self.groups.is_whole else "yellow"
            yield from ((text, style) for text in _group_lines(self.groups, dry_run=self.dry_run))
        yield from ((text, "yellow") for text in self.notes)
        whole = sum(restored.is_sound if self.dry_run else restored.is_whole for restored in self.results)
        done = "would be restored whole" if self.dry_run else "restored whole"
        yield f"{number(whole)} of {count(len(self.results) + len(self.missing), 'partition')} {done}", ""

    def _retention(self, topic: str) -> str:
        if (known := (self.settings or {}).get(topic)) is None:
            return ""
        had = [f"{name}={known.found[name]}" for name in RETENTION if name in known.found]
        default = [name for name in RETENTION if name not in known.found]
        unknown = f"what its brokers' server.properties said of {' and '.join(default)}, which is in no log"
        return f": {' and '.join([*had, *([unknown] if default else [])])}"

    def _settings_lines(self) -> Iterator[str]:
        for topic, plan in (self.settings or {}).items():
            if plan.changes:
                listed = ", ".join(f"{change.name}={change.after}" for change in plan.changes)
                if problem := self.unset.get(topic):
                    command = set_configs(self.target, topic, {c.name: c.after or "" for c in plan.changes})
                    done = "would not be set" if self.dry_run else "not set"
                    yield f"{topic}: {done} as on the lost cluster: {listed}: {problem}. To set them: {command}"
                else:
                    yield f"{topic}: {'would be set' if self.dry_run else 'set'} as on the lost cluster: {listed}"
            held = {name: value for name, value in plan.held.items() if name not in RETENTION or topic not in self.kept}
            if held:
                listed = ", ".join(f"{name}={value}" for name, value in held.items())
                command = set_configs(self.target, topic, held)
                done = "to set it when nothing more is to be restored"
                yield f"{topic}: had {listed}, which is not set; {done}: {command}"
            for name, why in plan.left.items():
                yield f"{topic}: had {name}={plan.found[name]}, which is not set: {why}"

    def _advice(self) -> list[Finding]:
        return [finding for finding in self.plan.findings if finding.severity is Severity.ADVISE]

    def _fields(self) -> tuple[Field, ...]:
        """Return what is said of a partition; the columns of a dry run are others."""
        is_dry = self.dry_run
        return (
            Field("", "assignment.source", "partition"),
            *keys("topic=assignment.source.topic partition=assignment.source.partition target=assignment.target.topic"),
            Field("", self._target, "target topic" if is_dry else None),
            Field("", _outcome, None if is_dry else "state"),
            Field("start", _held("start"), "from", number),
            Field("committed_end", _held("stable"), "to" if is_dry else None, number),
            Field("next_offset", _figure("next_offset"), None if is_dry else "to", number),
            Field("end", _held("end")),
            Field(
                "replicas", self._replicas, "replicas" if is_dry else None, lambda found: str(len(found)), "", "right"
            ),
            Field("records", _figure("records", 0), None if is_dry else "records", number),
            Field("batches", _figure("batches", 0), None if is_dry else "batches", number),
            Field("bytes", _figure("bytes", 0)),
            Field("state", _figure("state")),
            Field("detail", _figure("detail", "")),
            *keys("whole=is_whole expired at_risk"),
            Field("folders", lambda result: [*result.folders], "taken from", "\n".join),
            Field("notes", lambda result: [*result.notes, *filter(None, [result.problem])]),
        )

    def _target(self, result: Restored) -> str:
        topic = result.assignment.target.topic
        return f"{topic} (to be created)" if topic in self.made else topic

    def _replicas(self, result: Restored) -> list[str]:
        return [*map(str, self.wanted[result.assignment.source])]


_PLACE: Final = keys("group topic=at.topic partition=at.partition")
_BEYOND: Final = (*_PLACE, *keys("offset goes_on_at=end"))
_SKIPS: Final = (*_PLACE, *keys("records"))


def _held(name: str) -> Callable[[Restored], Any]:
    """Return an offset of the replica that was taken; None if none was."""
    return lambda result: getattr(result, name) if result.folders else None


def _figure(name: str, default: Any = None) -> Callable[[Restored], Any]:
    return lambda result: getattr(result.figures, name, default)


def _notes(restored: Restored, *, dry_run: bool) -> list[str]:
    notes = [restored.problem, *restored.notes]
    if not dry_run and restored.figures and not restored.is_copied:
        notes.append(
            restored.figures.detail or f"offsets {restored.figures.next_offset} to {restored.stable - 1} are not copied"
        )
    return notes


def _outcome(restored: Restored) -> Text:
    if restored.figures is None:
        return Text("not restored", "red")
    if not restored.is_copied:
        return state_text(restored.figures.state)
    return Text("in part", "red") if restored.at_risk else Text("restored", "green")


def _groups(report: GroupsReport) -> dict[str, Any]:
    return {
        "offsets": [
            {"group": group, "topic": partition.topic, "partition": partition.partition, "offset": committed.offset}
            for group, of in report.offsets.items()
            for partition, committed in of.items()
        ],
        "beyond": json_rows(_BEYOND, report.beyond),
        "undecided": {group: [*map(str, of)] for group, of in report.undecided.items()},
        "of_former_topics": report.former,
        "not_reached": [asdict(gap) for gap in report.gaps],
        "blockers": [asdict(blocker) for blocker in report.blockers],
        "skipped": json_rows(_SKIPS, report.skips),
        "notes": [*report.notes],
    }


def _group_lines(report: GroupsReport, *, dry_run: bool) -> Iterator[str]:
    groups = len(report.offsets)
    offsets = sum(map(len, report.offsets.values()))
    done = "would be committed on the target" if dry_run else "go on at the target" if report.is_whole else "were found"
    named = f": {first_of(sorted(report.offsets))}" if groups else ""
    yield f"{count(offsets, 'offset')} of {count(groups, 'group')} {done}{named}"
    lines = [
        *(
            f"group {gap.group} does not go on where it stood in {gap.topic}-{gap.partition}, at offset"
            f" {gap.source_offset}: {gap.cause} (reads again {gap.reads_again}, misses {gap.misses})"
            for gap in report.gaps
        ),
        *(
            f"groups: {blocker.cause}"
            + (f" ({blocker.group})" if blocker.group else "")
            + (f": {blocker.detail}" if blocker.detail else "")
            for blocker in report.blockers
        ),
        *(
            f"group {beyond.group} had read {beyond.at} up to offset {beyond.offset}, and the files have it up to"
            f" {beyond.end}: it {'would go' if dry_run else 'goes'} on there"
            for beyond in report.beyond
        ),
        *(
            f"group {group}: a transaction without an end had offsets for {first_of([*map(str, of)])}; those before it"
            " count"
            for group, of in report.undecided.items()
        ),
        *(
            f"group {skip.group} passes over {skip.records} records of {skip.at} that are deleted"
            for skip in report.skips
        ),
        *([f"{count(report.former, 'offset')} of former topics by these names are left out"] if report.former else []),
        *report.notes,
    ]
    yield from lines[:_NAMED]
    if len(lines) > _NAMED:
        yield f"and {len(lines) - _NAMED} more: --json has all"
