"""Plays a session: does what its turns say, lets the mirror come to rest, and holds what it said against both sides."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Final

import psutil
from confluent_kafka import KafkaException
from crashcut import crash_and_cut_all
from running import Running

from adversary.driving import Command
from adversary.journal import PASSING, STOPS, Recorded, found_in
from adversary.judging import Finding, vanished
from adversary.logs import Log, Reader, Record, Topic
from adversary.operations import Op
from adversary.play import CAUSES, Played
from adversary.world import SIDES, Side, World

from .records import Expected, differences, unburied
from .scripts import Rule, Session, Turn

#: What a mirror may take to come to rest, Spark's start included, and a command, with others on the machine.
SETTLE_SECONDS: Final = 120.0
COMMAND_SECONDS: Final = 120.0
#: In which a mirror that lives checks both logs again, and reports.
FRESH_SECONDS: Final = 5.0
#: For how long a marker of the coordinator may be on its way that was acknowledged.
CONFIRM_SECONDS: Final = 10.0
#: In which whoever writes behind a failover would have written.
LATE_SECONDS: Final = 2.0
EPOCH_SECONDS: Final = 2.0
#: For each stop, what may have caused it, besides what causes it elsewhere.
CAUSED: Final[Mapping[str, frozenset[str]]] = {
    "TARGET_LOST": frozenset({"delete_copy", "delete_progress", "cut_progress", "cut_target"}),
    "TRUNCATED": frozenset({"cut_source"}),
    "RETENTION_GAP": frozenset({"expire_source"}),
    "RECREATED": frozenset({"recreate", "delete_copy", "delete_source"}),
    "DIVERGED": frozenset({"stranger", "cut_target", "cut_progress"}),
    "FENCED": frozenset({"delete_copy", "delete_progress", "cut_progress", "cut_target"}),
    "REFUSED": frozenset({"bad record", "delete_progress", "cut_progress", "stranger"}),
}
#: What lifts a stop: a person begins the copy anew, or the source.
RESOLVES: Final = frozenset({"anew", "recreate", "delete_source"})
#: What takes a record of somebody else out of the copy.
CLEANS: Final = frozenset({"expire_target", "cut_target"})


class Limit(StrEnum):
    """What pages name as a limit, which a judge excuses."""

    #: rekey.md: somebody else's record is found by a mirror that starts, and by a slot that commits behind it.
    UNSEEN = "somebody else's records are not seen before the mirror writes or starts"
    #: rekey.md: what the target has deleted cannot be known; only `mirror verify` says so.
    CLEARED = "what the target has deleted is named by verify alone"
    #: rekey.md: without the progress topic, the flow refuses a target topic that holds records.
    REFUSED = "a copy without its progress is refused at a start"


@dataclass(slots=True, eq=False)
class Case:
    """One topic.

    causes: what was done to either side.
    held: what its source had, by partition and offset.
    begins: from where on its copy must have it, by partition, once that is known.
    standing: stops, by partition.
    touched: sides of which something was deleted or cut since both were read.
    cleared: partitions of the copy of which records were deleted.
    unseen: somebody else wrote since the mirror started.
    place: the number of the operation, by hundreds of turns: the same where the others are left out.
    """

    name: str
    rule: Rule
    causes: set[str] = field(default_factory=set)
    held: dict[int, dict[int, Record]] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    standing: dict[int, str] = field(default_factory=dict)
    touched: set[Side] = field(default_factory=set)
    cleared: set[int] = field(default_factory=set)
    unseen: bool = False
    paused: bool = False
    times_begun: int = 1
    place: int = 0

    def learn(self, source: Topic | None) -> None:
        """What the source has now; what it had below its start, it deleted, and the copy may have it."""
        for number, log in source.partitions.items() if source else ():
            held = self.held.get(number, {})
            self.held[number] = {at: one for at, one in held.items() if at < log.start} | log.records

    def begin_anew(self) -> None:
        """The copy will be another one, which begins with what there is then."""
        self.begins.clear()
        self.standing.clear()
        self.cleared.clear()
        self.unseen = False
        self.times_begun += 1

    def expected(self, source: Topic, numbers: Collection[int], reported: Recorded) -> Expected:
        """What the copy is to have of these partitions of the source, which are said to be whole."""
        due = {}
        for number in numbers:
            log = source.partitions[number]
            due[number] = self.begins.get(number, log.start), log.stable
        losses = {number: reported.losses.get((self.name, number), ()) for number in source.partitions}
        return Expected(self.held, due, losses, self.cleared)


def play(world: World, session: Session, ignored: Collection[str] = (), *, verifies: bool = True) -> Played[Session]:
    """Play it until something is found; `ignored` names invariants or kinds of findings to pass over. At the end it
    `verifies`, which starts Spark once more.
    """
    played, began = Played(session), time.monotonic()
    player = _Player(world, session, played, ignored)
    try:
        player.play(verifies=verifies)
    except Exception:  # of the adversary itself: reported, and no finding
        played.failure = traceback.format_exc()
    finally:
        player.clear()
    played.seconds = time.monotonic() - began
    return played


class _Player:
    def __init__(self, world: World, session: Session, played: Played[Session], ignored: Collection[str]) -> None:
        self._world, self._session, self._played, self._ignored = world, session, played, ignored
        self._tag = f"k{uuid.uuid4().hex[:7]}"
        self._folder = world.folder / self._tag
        self._folder.mkdir()
        self._readers = {side: Reader(world.sides[side].bootstrap) for side in SIDES}
        used = {op.topic for turn in session.turns for op in (*turn.before, *turn.amid)}
        self._cases = {n: Case(f"{self._tag}.{'abcdefgh'[n]}", session.rules[n]) for n in sorted(used)}
        self._source: dict[str, Topic] = {}
        self._copies: dict[str, Topic] = {}
        self._config = self._written()
        self._mirror: Running | None = None
        self._since = 0.0

    def _written(self) -> Path:
        content = {
            "name": self._tag,
            "source": {"alias": "eu", "bootstrap.servers": self._world.source.bootstrap},
            "target": {"alias": "us", "bootstrap.servers": self._world.target.bootstrap},
            "topics": {
                "include": [f"{self._tag}\\.[a-z]"],
                "rules": [one.rule.settings(one.name, self._letters(one)) for one in self._cases.values()],
                "on_data_loss": "continue" if self._session.continues else "stop",
            },
            "groups": {"include": []},
            "sync": {"interval_s": 1.0},
            "metrics": {"listen": None},
            "spark": {
                "master": "local[4]",
                "tasks": 2,
                "epoch_s": EPOCH_SECONDS,
                "conf": {"spark.ui.enabled": "false"},
            },
        }
        path = self._folder / "flow.yaml"
        path.write_text(json.dumps(content))
        return path

    @staticmethod
    def _letters(case: Case) -> str:
        return f"{case.name}-dead"

    def _progress(self, case: Case) -> str:
        return f"mirror.{self._tag}.rekey.{case.name}"

    # --- the play -----------------------------------------------------------------------------------------------------

    def play(self, *, verifies: bool) -> None:
        """Turn after turn, up to the first that shows something; and at last what commands say of all."""
        for number, case in self._cases.items():
            self._world.source.create(case.name, self._session.partitions[number], {"retention.ms": "-1"})
        for number, turn in enumerate(self._session.turns):
            began = time.monotonic()
            for case in self._cases.values():
                case.place = number * 100
            self._turn(turn)
            self._settle()
            self._say(f"   rest after {time.monotonic() - began:.1f} s: {self._states(self._recorded())}")
            if self._played.findings:
                break
        else:
            if verifies:
                self._verify()
            self._fail_over()
        if self._played.findings and self._mirror is not None:
            self._played.logs = "\n".join(one[:700] for one in self._mirror.log.splitlines() if one.startswith("{"))

    def _turn(self, turn: Turn) -> None:
        self._ops(turn.before)
        if self._mirror is None:
            self._start()
        mirror, said = self._mirror, turn.act
        assert mirror is not None
        time.sleep(turn.after_ms / 1000)
        tree = self._tree()
        match turn.act:
            case "freeze":
                _signal(tree, signal.SIGSTOP)
            case "kill":
                mirror.process.kill()
                mirror.ended()
            case "end" | "once":
                mirror.process.terminate()
                self._judge_end(mirror, "a mirror that is ended")
            case "failover":
                self._fail_over()
        if turn.amid:
            self._say(f"   meanwhile ({said} after {turn.after_ms} ms):")
        elif said != "none":
            self._say(f"   {said} after {turn.after_ms} ms")
        frozen = self._read("target") if turn.act == "failover" else {}
        self._ops(turn.amid)
        match turn.act:
            case "freeze":
                _signal(tree, signal.SIGCONT)
            case "kill" | "end":
                self._start(*(("--take-over",) if turn.after_ms < 400 else ()))
            case "once":
                self._once()
                self._start()
            case "failover":
                time.sleep(LATE_SECONDS)
                self._judge_over(frozen)
                self._say(f"   undone: exit {self._command('failover', '--undo')[0]}")
                self._start()
        self._since = time.time() + FRESH_SECONDS

    def _start(self, *options: str) -> None:
        self._mirror = Running(self._config, self._folder / f"run-{uuid.uuid4().hex[:6]}.err", "--json", *options)
        for case in self._cases.values():
            case.unseen = False

    def _tree(self) -> list[psutil.Process]:
        assert self._mirror is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            main = psutil.Process(self._mirror.process.pid)
            return [main, *main.children(recursive=True)]
        return []

    def clear(self) -> None:
        """End what runs, and delete what was made."""
        if self._mirror is not None:
            tree = self._tree()
            _signal(tree, signal.SIGKILL)
            self._mirror.process.wait()
            psutil.wait_procs(tree, timeout=10)
        for side in self._world.sides.values():
            with contextlib.suppress(Exception):
                side.forget([name for name in side.admin.list_topics(timeout=10).topics if self._tag in name])
        shutil.rmtree(self._folder, ignore_errors=True)

    def _say(self, step: str) -> None:
        self._played.steps.append(step)

    def _found(self, invariant: str, what: str, detail: str) -> None:
        self._add(Finding(invariant, what, detail))

    def _add(self, *findings: Finding) -> None:
        ignored = self._ignored
        self._played.findings += [one for one in findings if not {one.invariant, one.kind} & {*ignored}]

    # --- operations ---------------------------------------------------------------------------------------------------

    def _ops(self, ops: Iterable[Op]) -> None:
        """One after another; a crash is for the logs of all topics that are cut next to each other."""
        cuts: dict[Side, dict[tuple[str, int], int | None]] = {}
        for op in ops:
            if not op.name.startswith("cut_"):
                self._crash(cuts)
            case = self._cases[op.topic]
            case.place += 1
            done = getattr(self, f"_op_{op.name}")(op, case, cuts) or "done"
            if done == "-":
                continue
            case.causes.add(op.name)
            if op.name in RESOLVES:
                case.standing.clear()
            elif op.name in CLEANS:
                case.standing = {at: state for at, state in case.standing.items() if state != "DIVERGED"}
            self._say(f"{case.place:3} {op}: {done}")
        self._crash(cuts)

    def _crash(self, cuts: dict[Side, dict[tuple[str, int], int | None]]) -> None:
        for side, below in cuts.items():
            crash_and_cut_all(self._world.sides[side].cluster, below, waits=False)
        cuts.clear()

    def _cut(self, side: Side, topic: str, op: Op, cuts: dict[Side, dict[tuple[str, int], int | None]]) -> str:
        """Note where a partition is cut: at a share of its batches, by another amount than none of them."""
        found = self._readers[side].topics([topic]).get(topic)
        if found is None:
            return "-"
        number = op.partition % len(found.partitions)
        log = found.partitions[number]
        ends = [log.start, *(end for end in self._world.ends(side, topic, number) if end > log.start)]
        below = ends[(len(ends) - 1) * min(op.amount, 90) // 100]
        if below >= log.end or (topic, number) in cuts.get(side, {}):
            return "-"
        cuts.setdefault(side, {})[topic, number] = below
        return f"{topic}-{number} from {log.end} to {below}"

    def _expire(self, side: Side, op: Op, case: Case) -> str:
        """Delete the first records of a partition: a share of what is there."""
        if (found := self._read(side, [case.name]).get(case.name)) is None:
            return "-"
        number = op.partition % len(found.partitions)
        log = found.partitions[number]
        before = log.start + (log.stable - log.start) * max(op.amount, 25) // 100
        if before <= log.start:
            return "-"
        case.touched.add(side)
        if side == "target":
            case.cleared.add(number)
        self._world.sides[side].expire(case.name, number, before)
        return f"{number} before {before} of {log.end}"

    def _op_produce(self, op: Op, case: Case, _: object) -> str:
        side = self._world.source
        if case.name not in side.admin.list_topics(timeout=30).topics:
            side.create(case.name, 1 + op.partition % 2, {"retention.ms": "-1"})
        partitions = len(self._read("source", [case.name])[case.name].partitions)
        chance = Random(f"{self._session.seed} {op.topic} {case.place}")
        value = f"s{self._session.seed}.{case.place}"
        side.produce(case.name, op.partition % partitions, op.amount, op.kind, chance, value)
        if op.kind == "keyed" and case.rule.by == "value" and case.rule.on_bad_record == "stop":
            case.causes.add("bad record")
        return ""

    def _op_expire_source(self, op: Op, case: Case, _: object) -> str:
        return self._expire("source", op, case)

    def _op_cut_source(self, op: Op, case: Case, cuts: dict[Side, dict[tuple[str, int], int | None]]) -> str:
        case.touched.add("source")
        return self._cut("source", case.name, op, cuts)

    def _op_recreate(self, op: Op, case: Case, _: object) -> str:
        self._op_delete_source(op, case, _)
        self._world.source.create(case.name, 1 + op.partition % 2, {"retention.ms": "-1"})
        case.causes.discard("delete_source")
        return ""

    def _op_delete_source(self, _: Op, case: Case, __: object) -> str:
        self._world.source.delete(case.name)
        case.held.clear()
        case.touched.add("source")
        return ""

    def _op_grow(self, _: Op, case: Case, __: object) -> str:
        found = self._read("source", [case.name]).get(case.name)
        if found is None or len(found.partitions) > 2:
            return "-"
        self._world.source.grow(case.name, len(found.partitions) + 1)
        return ""

    def _op_cut_target(self, op: Op, case: Case, cuts: dict[Side, dict[tuple[str, int], int | None]]) -> str:
        case.touched.add("target")
        return self._cut("target", case.name, op, cuts)

    def _op_cut_progress(self, op: Op, case: Case, cuts: dict[Side, dict[tuple[str, int], int | None]]) -> str:
        return self._cut("target", self._progress(case), op, cuts)

    def _op_delete_copy(self, _: Op, case: Case, __: object) -> str:
        self._world.target.delete(case.name)
        case.touched.add("target")
        return ""

    def _op_delete_progress(self, _: Op, case: Case, __: object) -> str:
        self._world.target.delete(self._progress(case))
        return ""

    def _op_anew(self, _: Op, case: Case, __: object) -> str:
        """What a person is advised to do, in one command."""
        case.touched.add("target")
        for future in self._world.target.admin.delete_topics([case.name, self._progress(case)]).values():
            with contextlib.suppress(KafkaException):  # it may be gone
                future.result(COMMAND_SECONDS)
        case.begin_anew()
        case.causes -= CAUSED["FENCED"] | {"cut_source", "stranger", "recreate"}
        return ""

    def _op_stranger(self, op: Op, case: Case, _: object) -> str:
        if (found := self._read("target", [case.name]).get(case.name)) is None:
            return "-"
        number = op.partition % len(found.partitions)
        name = f"z{case.place}"
        self._world.target.produce(case.name, number, 1 + op.amount // 10, op.kind, Random(op.amount), name)
        case.unseen = True
        return f"{op.kind} in {number}"

    def _op_expire_target(self, op: Op, case: Case, _: object) -> str:
        return self._expire("target", op, case)

    def _op_pause(self, _: Op, case: Case, __: object) -> str:
        case.paused = True
        return f"exit {self._command('pause', case.name)[0]}"

    def _op_resume(self, _: Op, case: Case, __: object) -> str:
        case.paused = False
        return f"exit {self._command('resume', case.name)[0]}"

    def _op_accept(self, _: Op, case: Case, __: object) -> str:
        return f"exit {self._command('accept', case.name)[0]}"

    # --- commands -----------------------------------------------------------------------------------------------------

    def _command(self, *arguments: str) -> tuple[int | None, Command]:
        """One that needs no Spark, to its end."""
        name, *more = arguments
        command = Command(self._folder, name, str(self._config), *more)
        code = command.wait(COMMAND_SECONDS)
        if code is None:
            command.end()
            self._found("I7", "a command hangs", f"{name}: {command.logged[-1500:]}")
        elif code == 1 or code < 0:
            self._found("I9", "a command ended with a bug", f"{name}: exit {code}: {command.logged[-2500:]}")
        return code, command

    def _once(self) -> None:
        """A bounded run ends, and says 0 of what is whole alone."""
        mirror = Running(self._config, self._folder / "once.err", "--once", "--json")
        code = self._judge_end(mirror, "run --once")
        self._say(f"   run --once: exit {code}")
        if code == 0:
            self._since = 0.0
            self._all_whole("run --once said 0", "I2")

    def _judge_end(self, mirror: Running, what: str) -> int | None:
        try:
            code = mirror.ended(COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            self._found("I7", f"{what} does not end", mirror.log[-1500:])
            mirror.process.kill()
            return None
        if code in {1, 2} or code < 0:
            self._found("I9", f"{what} ended with a bug", f"exit {code}: {mirror.log[-2500:]}")
        return code

    def _fail_over(self) -> None:
        mirror = self._mirror
        assert mirror is not None
        code, command = self._command("failover", "--json")
        self._say(f"   failover: exit {code}")
        if code not in {0, 4, 7}:
            self._found(
                "I3", "a failover is not done", f"exit {code}: {command.printed[-800:]} {command.logged[-1500:]}"
            )
            return
        self._judge_end(mirror, "a mirror that was failed over")
        if code == 0:
            self._all_whole("failover said 0", "I3")
        said = json.loads(command.printed)
        of = [one for one in said["partitions"] if not one["whole"]] + said["accepted_losses"]
        named = {one["topic"] for one in of} | {name for name in self._names if _is_in(name, said["warnings"])}
        self._unnamed(named, "failover", "I3", {Limit.CLEARED}, command.printed)

    def _verify(self) -> None:
        command = [sys.executable, "-m", "mirror", "verify", str(self._config), "--json"]
        with (self._folder / "verify.err").open("w") as errors:
            done = subprocess.run(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=COMMAND_SECONDS, check=False
            )
        self._say(f"   verify: exit {done.returncode}")
        if done.returncode not in {0, 5, 7}:
            text = f"exit {done.returncode}: {done.stdout[-500:]} {(self._folder / 'verify.err').read_text()[-1500:]}"
            self._found("I9", "verify ended with a bug", text)
            return
        if done.returncode == 0:
            self._all_whole("verify said 0", "I8")
        said = json.loads(done.stdout)
        differs = {one["topic"] for one in said["differences"]}
        self._unnamed(differs | {one["topic"] for one in said["not_whole"]}, "verify", "I8", set(), done.stdout)
        wrong = self._lacking(self._recorded())
        for case in self._cases.values():
            if case.name in differs - wrong.keys() and not case.causes - {"produce", "grow", "bad record", "accept"}:
                self._found("I8", "equal, but reported as different", f"{case.name}: {said['differences'][:3]}")

    # --- what must hold -----------------------------------------------------------------------------------------------

    @property
    def _names(self) -> list[str]:
        return [case.name for case in self._cases.values()]

    def _read(self, side: Side, names: Collection[str] = ()) -> dict[str, Topic]:
        """Topics of a side as they are now; of the source, what they have is kept."""
        found = self._readers[side].topics(names or self._names)
        if side == "source":
            for case in self._cases.values():
                case.learn(found.get(case.name))
        return found

    def _recorded(self) -> Recorded:
        return found_in(self._readers["target"].entries(f"mirror.{self._tag}.offsets"))

    @staticmethod
    def _states(reported: Recorded) -> str:
        found = {(place[0][-1], place[1]): one for place, one in reported.states.items()}
        return " ".join(
            f"{topic}{number} {one.state}@{one.next_offset}" for (topic, number), one in sorted(found.items())
        )

    def _settle(self) -> None:
        """Until the mirror says of every partition that it is caught up, stopped or paused, and what it says holds."""
        began, at_rest = time.monotonic(), 0.0
        while True:
            now, reported, source = time.monotonic(), self._recorded(), self._read("source")
            restless = {
                case.name: text for case in self._cases.values() if (text := self._restless(case, source, reported))
            }
            assert self._mirror is not None
            if (code := self._mirror.process.poll()) is not None:
                text = f"exit {code}: {self._mirror.log[-2500:]}"
                self._found("I9" if code in {1, 2} or code < 0 else "I7", "a live mirror ended", text)
                return
            if not restless:
                at_rest = at_rest or now
                self._source, before = source, self._copies
                self._copies = self._read("target")
                wrong = self._judged(reported)
                if not wrong or now > at_rest + CONFIRM_SECONDS:
                    self._add(*wrong)
                    self._judge_states(reported)
                    self._judge_kept(before)
                    return
                self._copies = before
            elif now > began + SETTLE_SECONDS:
                is_stopped = any(" after [" in text for text in restless.values())
                invariant, what = ("I4", "a stop without its cause") if is_stopped else ("I7", "a mirror has no rest")
                self._found(invariant, what, f"{restless}; {self._mirror.log[-1500:]}")
                return
            time.sleep(0.5)

    def _restless(self, case: Case, source: Mapping[str, Topic], reported: Recorded) -> str:
        """What of a topic is not at rest, or stopped without a cause, in words."""
        for number, log in source[case.name].partitions.items() if case.name in source else ():
            at = reported.states.get((case.name, number))
            if at is None or at.at_ms < self._since * 1000:
                return "" if self._is_refused(case) else f"{number} is not reported"
            causes = CAUSES.get(at.state, frozenset()) | CAUSED.get(at.state, frozenset())
            if at.state == "PAUSED" or (at.state in STOPS and causes & case.causes):
                continue
            if at.state in STOPS:  # one that was resolved may stand until the mirror begins anew
                return f"{number} is {at.state} after {sorted(case.causes)}: {at.detail}"
            if at.state != "CAUGHT_UP" or at.next_offset < log.stable:
                return f"{number} is {at.state} at {at.next_offset}, the source ends at {log.stable}: {at.detail}"
        return ""

    def _is_refused(self, case: Case) -> bool:
        """The mirror started without a topic whose copy lacks its progress, or the other way round, and said so."""
        if not case.causes & {"delete_copy", "delete_progress"} or self._mirror is None:
            return False
        said = any("not_mirrored" in line and case.name in line for line in self._mirror.log.splitlines())
        if said:
            self._played.excused.add(f"{case.name[-1]}: {Limit.REFUSED}")
        return said

    def _judged(self, reported: Recorded) -> list[Finding]:
        return [one for found in self._lacking(reported, is_said=True).values() for one in found]

    def _lacking(self, reported: Recorded, *, is_said: bool = False) -> dict[str, list[Finding]]:
        """In what copies are not what they should be, by topic; `is_said`: of what is said to be caught up alone, and
        without what a limit excuses.
        """
        found: dict[str, list[Finding]] = {}
        for case in self._cases.values():
            if (source := self._source.get(case.name)) is None:
                continue
            numbers = [
                number
                for number in source.partitions
                if not is_said or _state(reported, case.name, number) == "CAUGHT_UP"
            ]
            if not numbers:
                continue
            for number in numbers if is_said else ():
                case.begins.setdefault(number, source.partitions[number].start)
            copy = self._copies.get(case.name)
            expected = case.expected(source, numbers, reported)
            wrong = [*differences(case.name, case.rule, expected, copy.partitions if copy else {})]
            if case.rule.on_bad_record == "dead-letter":
                letters = self._readers["target"].topics([self._letters(case)]).get(self._letters(case))
                log = letters.partitions[0] if letters else Log(0, 0, 0)
                wrong += unburied(case.name, case.rule, expected, log, once=case.times_begun == 1)
            if is_said:
                is_whole = len(numbers) == len(source.partitions)
                wrong = [one for one in wrong if not self._is_excused(one, case, is_whole=is_whole)]
            if wrong:
                found[case.name] = wrong
        return found

    def _is_excused(self, one: Finding, case: Case, *, is_whole: bool) -> bool:
        if one.what == "records of nobody" and case.unseen:
            self._played.excused.add(f"{case.name[-1]}: {Limit.UNSEEN}")
            return True
        return not is_whole and one.what == "records of nobody"  # of the partition that is stopped

    def _judge_states(self, reported: Recorded) -> None:
        """A stop stays until a person acts."""
        for (name, number), said in reported.states.items():
            case = next((one for one in self._cases.values() if one.name == name), None)
            if case is None or said.at_ms < self._since * 1000 or name not in self._source:
                continue
            place = f"{name}-{number}"
            if said.state in STOPS:
                if said.state not in PASSING:
                    case.standing[number] = said.state
            elif number in case.standing and said.state != "PAUSED":
                self._found("I6", "a stop lifted itself", f"{place}: {case.standing[number]}, now {said.state}")

    def _judge_kept(self, before: Mapping[str, Topic]) -> None:
        """Nothing is gone of a copy that nobody touched, and nobody touched the source."""
        for case in self._cases.values():
            was, now = before.get(case.name), self._copies.get(case.name)
            if was is not None and "target" not in case.touched:
                if now is None or now.id != was.id:
                    self._found("I1", "a topic was deleted", case.name)
                else:
                    for number, log in was.partitions.items():
                        place = f"{case.name}-{number}"
                        self._add(*vanished(place, log, now.partitions[number], 0, None))
            case.touched.clear()

    def _judge_over(self, before: Mapping[str, Topic]) -> None:
        """Nothing arrives behind a failover."""
        for name, topic in self._read("target").items():
            for number, log in topic.partitions.items() if name in before and before[name].id == topic.id else ():
                more = log.records.keys() - before[name].partitions[number].records.keys()
                if [at for at in more if not (log.records[at].value or b"").startswith(b"z")]:
                    self._found("I3", "copied on after a failover", f"{name}-{number}: {sorted(more)[:5]}")

    def _all_whole(self, said: str, invariant: str) -> None:
        """Something was said that implies that all copies are whole."""
        self._reread()
        reported = self._recorded()
        for name, wrong in self._lacking(reported).items():
            for one in wrong:
                self._found(invariant, one.what, f"{said}, but {one.detail}")
            if not wrong and any(first < until for first, until in self._losses(reported, name)):
                self._found(invariant, "a loss is hidden", f"{said}, but {name} lacks {self._losses(reported, name)}")
        for case in self._cases.values():
            if case.standing and case.name in self._source:
                self._found(invariant, "a stop is hidden", f"{said}, but {case.name} stands at {case.standing}")

    def _unnamed(self, named: Collection[str], by: str, invariant: str, limits: set[Limit], printed: str) -> None:
        """Each topic that is not whole must be among those that a command names."""
        self._reread()
        for name, wrong in self._lacking(self._recorded()).items():
            case = next(one for one in self._cases.values() if one.name == name)
            if name in named or (Limit.CLEARED in limits and case.cleared):
                continue
            for one in wrong:
                self._found(invariant, f"{by} does not name what is wrong", f"{one}; {printed[-3000:]}")

    def _reread(self) -> None:
        """Both sides as they are now, without a judgment of what is gone."""
        self._source, self._copies = self._read("source"), self._read("target")

    @staticmethod
    def _losses(reported: Recorded, name: str) -> Iterator[tuple[int, int]]:
        return (loss for place, losses in reported.losses.items() if place[0] == name for loss in losses)


def _state(reported: Recorded, name: str, number: int) -> str:
    at = reported.states.get((name, number))
    return at.state if at is not None else ""


def _is_in(name: str, texts: Iterable[str]) -> bool:
    return any(name in text for text in texts)


def _signal(tree: Iterable[psutil.Process], number: signal.Signals) -> None:
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)


OPERATIONS: Final[frozenset[str]] = frozenset(
    name.removeprefix("_op_") for name in vars(_Player) if name.startswith("_op_")
)
