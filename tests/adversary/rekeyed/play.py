"""Plays a session: does what its turns say, lets the mirror come to rest, and holds what it said against both sides."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import traceback
import uuid
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import psutil
from confluent_kafka import KafkaException
from crashcut import crash_and_cut_all
from helpers import config_file
from running import Running

from adversary.journal import PASSING, STOPS, Recorded
from adversary.judge import CAUSES
from adversary.judging import Finding, vanished
from adversary.logs import Log, Record, Topic
from adversary.memory import EPOCH_SECONDS, TIMEOUT_S, Played, Player
from adversary.operations import LETTERS, Op
from adversary.world import Side, World

from .records import Expected, differences, unburied
from .scripts import Rule, Session, Turn

#: In which a mirror that lives checks both logs again, and reports.
FRESH_SECONDS: Final = 5.0
#: For how long a marker of the coordinator may be on its way that was acknowledged.
CONFIRM_SECONDS: Final = 30.0
#: In which whoever writes behind a failover would have written.
LATE_SECONDS: Final = 2.0
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
#: By partition of a topic, the offset to which its log is to be cut.
Cuts = dict[Side, dict[tuple[str, int], int | None]]


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
    times_begun: int = 1
    place: int = 0

    @property
    def letters(self) -> str:
        """The topic of its dead letters."""
        return f"{self.name}-dead"

    def learn(self, source: Topic | None) -> None:
        """Keep what the source has now; what it had below its start, it deleted, and the copy may have it."""
        for number, log in source.partitions.items() if source else ():
            held = self.held.get(number, {})
            self.held[number] = {offset: record for offset, record in held.items() if offset < log.start} | log.records

    def begin_anew(self) -> None:
        """The copy will be another one, which begins with what there is then."""
        self.begins.clear()
        self.standing.clear()
        self.cleared.clear()
        self.unseen = False
        self.times_begun += 1

    def expected(self, source: Topic, numbers: Collection[int], recorded: Recorded) -> Expected:
        """Return what the copy is to have of these partitions of the source, which are said to be whole."""
        starts = {number: self.begins.get(number, source.partitions[number].start) for number in numbers}
        due = {number: (start, source.partitions[number].stable) for number, start in starts.items()}
        losses = {number: recorded.losses.get((self.name, number), ()) for number in source.partitions}
        return Expected(self.held, due, losses, self.cleared)


def play(world: World, session: Session) -> Played[Session]:
    """Play it until something is found."""
    played, began = Played(session), time.monotonic()
    player = _Player(world, session, played)
    try:
        player.play()
    except Exception:  # of the adversary itself: reported, and no finding
        played.failure = traceback.format_exc()
    finally:
        player.clear()
    played.seconds = time.monotonic() - began
    return played


class _Player(Player[Session]):
    def __init__(self, world: World, session: Session, played: Played[Session]) -> None:
        super().__init__(world, played, TIMEOUT_S)
        self._session = session
        used = {op.topic for turn in session.turns for op in (*turn.before, *turn.amid)}
        self._cases = {number: Case(f"{self._tag}.{LETTERS[number]}", session.rules[number]) for number in sorted(used)}
        self._by_name = {case.name: case for case in self._cases.values()}
        self._source: dict[str, Topic] = {}
        self._copies: dict[str, Topic] = {}
        self._config = self._written()
        self._mirror: Running | None = None
        self._since = 0.0

    def _written(self) -> Path:
        sections = {
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
        return config_file(
            self._folder,
            self._world.source.bootstrap,
            self._world.target.bootstrap,
            [f"{self._tag}\\.[a-z]"],
            self._tag,
            sections=sections,
            rules=[case.rule.settings(case.name, case.letters) for case in self._cases.values()],
            on_data_loss="continue" if self._session.continues else "stop",
        )

    def _progress(self, case: Case) -> str:
        return f"mirror.{self._tag}.rekey.{case.name}"

    # --- the play -----------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Play turn after turn, up to the first that shows something, and fail over at last."""
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
            self._fail_over()
        if self._played.findings and self._mirror is not None:
            self._played.logs = "\n".join(line[:700] for line in self._mirror.log.splitlines() if line.startswith("{"))

    def _turn(self, turn: Turn) -> None:
        self._ops(turn.before)
        if self._mirror is None:
            self._start()
        mirror = self._mirror
        assert mirror is not None
        time.sleep(turn.after_ms / 1000)
        tree, frozen = self._tree(), dict[str, Topic]()
        match turn.act:
            case "freeze":
                _signal(tree, signal.SIGSTOP)
            case "kill":
                mirror.process.kill()
                mirror.ended()
            case "end":
                mirror.process.terminate()
                self._judge_end(mirror, "a mirror that is ended")
            case "failover":
                self._fail_over()
                frozen = self._read("target")
        self._say(f"   {turn.act} after {turn.after_ms} ms{'; meanwhile:' if turn.amid else ''}")
        self._ops(turn.amid)
        match turn.act:
            case "freeze":
                _signal(tree, signal.SIGCONT)
            case "kill" | "end":
                self._start(*(("--take-over",) if turn.after_ms < 400 else ()))
            case "failover":
                time.sleep(LATE_SECONDS)
                self._judge_over(frozen)
                self._say(f"   undone: exit {self._command('failover', str(self._config), '--undo')[0]}")
                self._start()
        self._since = time.time() + FRESH_SECONDS

    def _start(self, *options: str) -> None:
        self._mirror = Running(self._config, self._folder / f"run-{uuid.uuid4().hex[:6]}.err", "--json", *options)
        for case in self._cases.values():
            case.unseen = False

    def _tree(self) -> list[psutil.Process]:
        assert self._mirror is not None
        with suppress(psutil.NoSuchProcess):
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
        super().clear()

    def _say(self, step: str) -> None:
        self._played.steps.append(step)

    # --- operations ---------------------------------------------------------------------------------------------------

    def _ops(self, ops: Iterable[Op]) -> None:
        """Do one after another; a crash is for the logs of all topics that are cut next to each other."""
        cuts: Cuts = {}
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
                case.standing = {number: state for number, state in case.standing.items() if state != "DIVERGED"}
            self._say(f"{case.place:3} {op}: {done}")
        self._crash(cuts)

    def _crash(self, cuts: Cuts) -> None:
        for side, below in cuts.items():
            crash_and_cut_all(self._world.sides[side].cluster, below, waits=False)
        cuts.clear()

    def _cut(self, side: Side, topic: str, op: Op, cuts: Cuts) -> str:
        """Note where a partition is cut: at a share of its batches."""
        found = self._readers[side].topics([topic]).get(topic)
        if found is None:
            return "-"
        number = op.partition % len(found.partitions)
        log = found.partitions[number]
        below = self._world.cut_below(side, topic, number, log.start, op.amount)
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

    def _op_produce(self, op: Op, case: Case, _: Cuts) -> str:
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

    def _op_expire_source(self, op: Op, case: Case, _: Cuts) -> str:
        return self._expire("source", op, case)

    def _op_expire_target(self, op: Op, case: Case, _: Cuts) -> str:
        return self._expire("target", op, case)

    def _op_cut_source(self, op: Op, case: Case, cuts: Cuts) -> str:
        case.touched.add("source")
        return self._cut("source", case.name, op, cuts)

    def _op_cut_target(self, op: Op, case: Case, cuts: Cuts) -> str:
        case.touched.add("target")
        return self._cut("target", case.name, op, cuts)

    def _op_cut_progress(self, op: Op, case: Case, cuts: Cuts) -> str:
        return self._cut("target", self._progress(case), op, cuts)

    def _op_recreate(self, op: Op, case: Case, cuts: Cuts) -> None:
        self._op_delete_source(op, case, cuts)
        self._world.source.create(case.name, 1 + op.partition % 2, {"retention.ms": "-1"})
        case.causes.discard("delete_source")

    def _op_delete_source(self, _: Op, case: Case, __: Cuts) -> None:
        self._world.source.delete(case.name)
        case.held.clear()
        case.touched.add("source")

    def _op_grow(self, _: Op, case: Case, __: Cuts) -> str:
        found = self._read("source", [case.name]).get(case.name)
        if found is None or len(found.partitions) > 2:
            return "-"
        self._world.source.grow(case.name, len(found.partitions) + 1)
        return ""

    def _op_delete_copy(self, _: Op, case: Case, __: Cuts) -> None:
        self._world.target.delete(case.name)
        case.touched.add("target")

    def _op_delete_progress(self, _: Op, case: Case, __: Cuts) -> None:
        self._world.target.delete(self._progress(case))

    def _op_anew(self, _: Op, case: Case, __: Cuts) -> None:
        """What a person is advised to do, in one command."""
        case.touched.add("target")
        for future in self._world.target.admin.delete_topics([case.name, self._progress(case)]).values():
            with suppress(KafkaException):  # it may be gone
                future.result(TIMEOUT_S)
        case.begin_anew()
        case.causes -= CAUSED["FENCED"] | {"cut_source", "stranger", "recreate"}

    def _op_stranger(self, op: Op, case: Case, _: Cuts) -> str:
        if (found := self._read("target", [case.name]).get(case.name)) is None:
            return "-"
        number = op.partition % len(found.partitions)
        name = f"z{case.place}"
        self._world.target.produce(case.name, number, 1 + op.amount // 10, op.kind, Random(op.amount), name)
        case.unseen = True
        return f"{op.kind} in {number}"

    def _op_pause(self, op: Op, case: Case, _: Cuts) -> str:
        return f"exit {self._command(op.name, str(self._config), case.name)[0]}"

    _op_resume = _op_accept = _op_pause

    # --- commands -----------------------------------------------------------------------------------------------------

    def _judge_end(self, mirror: Running, what: str) -> int | None:
        try:
            code = mirror.ended(TIMEOUT_S)
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
        code, command = self._command("failover", str(self._config), "--json")
        self._say(f"   failover: exit {code}")
        if code not in {0, 4, 7}:
            detail = f"exit {code}: {command.printed[-800:]} {command.logged[-1500:]}"
            self._found("I3", "a failover is not done", detail)
            return
        self._judge_end(mirror, "a mirror that was failed over")
        if code == 0:
            self._all_whole("failover said 0", "I3")
        # each topic that is not whole is named, but for what the target has deleted, which cannot be known (rekey.md)
        said = json.loads(command.printed)
        lacking = [part for part in said["partitions"] if not part["whole"]] + said["accepted_losses"]
        named = {part["topic"] for part in lacking}
        named |= {name for name in self._by_name if any(name in warning for warning in said["warnings"])}
        self._reread()
        for name, wrong in self._lacking(self._recorded()).items():
            if name not in named and not self._by_name[name].cleared:
                detail = f"{wrong[0]}; {command.printed[-3000:]}"
                self._found("I3", "a failover does not name what is wrong", detail)

    # --- what must hold -----------------------------------------------------------------------------------------------

    def _read(self, side: Side, names: Collection[str] = ()) -> dict[str, Topic]:
        """Return topics of a side as they are now; of the source, what they have is kept."""
        found = self._readers[side].topics(names or [*self._by_name])
        if side == "source":
            for case in self._cases.values():
                case.learn(found.get(case.name))
        return found

    def _reread(self) -> None:
        """Read both sides as they are now, without a judgment of what is gone."""
        self._source, self._copies = self._read("source"), self._read("target")

    @staticmethod
    def _states(recorded: Recorded) -> str:
        states = sorted(recorded.states.items())
        return " ".join(f"{name[-1]}{number} {report.state}@{report.next_offset}" for (name, number), report in states)

    def _settle(self) -> None:
        """Wait until the mirror says of every partition that it is caught up, stopped or paused; what it says holds."""
        began, at_rest = time.monotonic(), 0.0
        while True:
            now, recorded, source = time.monotonic(), self._recorded(), self._read("source")
            restless = {
                case.name: text for case in self._cases.values() if (text := self._restless(case, source, recorded))
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
                wrong = [found for each in self._lacking(recorded, is_said=True).values() for found in each]
                if not wrong or now > at_rest + CONFIRM_SECONDS:
                    self._played.findings += wrong
                    self._judge_states(recorded)
                    self._judge_kept(before)
                    return
                self._copies = before
            elif now > began + TIMEOUT_S:
                is_stopped = any(" after [" in text for text in restless.values())
                invariant, what = ("I4", "a stop without its cause") if is_stopped else ("I7", "a mirror has no rest")
                self._found(invariant, what, f"{restless}; {self._mirror.log[-1500:]}")
                return
            time.sleep(0.5)

    def _restless(self, case: Case, source: Mapping[str, Topic], recorded: Recorded) -> str:
        """Say what of a topic is not at rest, or stopped without a cause."""
        for number, log in source[case.name].partitions.items() if case.name in source else ():
            report = recorded.states.get((case.name, number))
            if report is None or report.at_ms < self._since * 1000:
                return "" if self._is_refused(case) else f"{number} is not reported"
            causes = CAUSES.get(report.state, frozenset()) | CAUSED.get(report.state, frozenset())
            if report.state == "PAUSED" or (report.state in STOPS and causes & case.causes):
                continue
            place = f"{number} is {report.state}"
            if report.state in STOPS:  # one that was resolved may stand until the mirror begins anew
                return f"{place} after {sorted(case.causes)}: {report.detail}"
            if report.state != "CAUGHT_UP" or report.next_offset < log.stable:
                return f"{place} at {report.next_offset}, the source ends at {log.stable}: {report.detail}"
        return ""

    def _is_refused(self, case: Case) -> bool:
        """The mirror started without a topic whose copy lacks its progress, or the other way round (rekey.md)."""
        if not case.causes & {"delete_copy", "delete_progress"} or self._mirror is None:
            return False
        return any("not_mirrored" in line and case.name in line for line in self._mirror.log.splitlines())

    def _lacking(self, recorded: Recorded, *, is_said: bool = False) -> dict[str, list[Finding]]:
        """Return in what copies are not what they should be, by topic; `is_said`: of what is said to be caught up
        alone, and without what a limit excuses.
        """
        found: dict[str, list[Finding]] = {}
        for case in self._cases.values():
            if (source := self._source.get(case.name)) is None:
                continue
            numbers = [*source.partitions]
            if is_said:
                states = recorded.states
                numbers = [n for n in numbers if (at := states.get((case.name, n))) and at.state == "CAUGHT_UP"]
                for number in numbers:
                    case.begins.setdefault(number, source.partitions[number].start)
            if not numbers:
                continue
            copy, expected = self._copies.get(case.name), case.expected(source, numbers, recorded)
            wrong = [*differences(case.name, case.rule, expected, copy.partitions if copy else {})]
            if case.rule.on_bad_record == "dead-letter":
                letters = self._readers["target"].topics([case.letters]).get(case.letters)
                log = letters.partitions[0] if letters else Log(0, 0, 0)
                wrong += unburied(case.name, case.rule, expected, log, once=case.times_begun == 1)
            if is_said:
                is_whole = len(numbers) == len(source.partitions)
                wrong = [one for one in wrong if not self._is_excused(one, case, is_whole=is_whole)]
            if wrong:
                found[case.name] = wrong
        return found

    @staticmethod
    def _is_excused(found: Finding, case: Case, *, is_whole: bool) -> bool:
        """Somebody else's record is found by a mirror that starts, and by a slot that commits behind it (rekey.md); or
        it is of the partition that is stopped.
        """
        return found.what == "records of nobody" and (case.unseen or not is_whole)

    def _judge_states(self, recorded: Recorded) -> None:
        """A stop stays until a person acts."""
        for (name, number), report in recorded.states.items():
            case = self._by_name.get(name)
            if case is None or report.at_ms < self._since * 1000 or name not in self._source:
                continue
            if report.state in STOPS - PASSING:
                case.standing[number] = report.state
            elif report.state not in STOPS and number in case.standing and report.state != "PAUSED":
                detail = f"{name}-{number}: {case.standing[number]}, now {report.state}"
                self._found("I6", "a stop lifted itself", detail)

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
                        self._played.findings += vanished(place, log, now.partitions[number], 0, None)
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
        recorded = self._recorded()
        lacking = self._lacking(recorded)
        for found in (found for wrong in lacking.values() for found in wrong):
            self._found(invariant, found.what, f"{said}, but {found.detail}")
        for (name, _), losses in recorded.losses.items():
            if name in self._source and name not in lacking and any(first < until for first, until in losses):
                self._found(invariant, "a loss is hidden", f"{said}, but {name} lacks {losses}")
        for case in self._cases.values():
            if case.standing and case.name in self._source:
                self._found(invariant, "a stop is hidden", f"{said}, but {case.name} stands at {case.standing}")


def _signal(tree: Iterable[psutil.Process], number: signal.Signals) -> None:
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


OPERATIONS: Final[frozenset[str]] = frozenset(
    name.removeprefix("_op_") for name in vars(_Player) if name.startswith("_op_")
)
