"""What is done to and with the mirror: runs, signals, and commands beside them."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from .driving import Command
from .journal import STOPS, Recorded
from .judging import Allowed, text_of
from .logs import Log, Topic
from .memory import ONCE_SECONDS
from .on_clusters import OnClusters
from .operations import Op
from .world import SIDES

#: Within which a mirror has copied what was produced, and most likely reported nothing of it.
UNREPORTED_SECONDS: Final = 0.2
#: Before which of its orders a command is suspended, by an amount: what it changes of topics comes first.
ORDERS: Final[Mapping[int, int]] = {0: 0, 25: 0, 50: 1, 75: 2, 90: 3, 100: 4}
#: Longer than `mirror.suspension` takes for a pause.
SUSPENDED_SECONDS: Final = 5.5


class OnMirror(OnClusters):
    """Operations return what they did, or "-" where they do not fit."""

    def _op_run(self, op: Op) -> str:
        if self._live:
            return self._op_settle(op)
        code, command = self._command("run", str(self._config(epoch_s=ONCE_SECONDS)), "--once", "--json")
        self._read_again()
        recorded = self._recorded()
        self._judge_states(recorded, command)
        states = {standing.state for standing in recorded.states.values()}
        if code == 0:
            if self._failed_over:
                self._found("I3", "a flow that was failed over ran", "exit 0")
            self._equal("run --once said 0", recorded)
            for name, copy in self._copies.items():
                if copy.standing and self._names[copy.source] in self._source:
                    self._found("I6", "a stop lifted itself", f"{name}: {copy.standing}, and now exit 0")
        elif code == 3:
            self._judge_refusal(command)
        elif code == 4 and not states & STOPS:
            self._found("I7", "data at risk, but no stop is named", command.logged[-1500:])
        elif code == 2 or (code == 6 and "PAUSED" not in states):  # what is paused is named as incomplete
            self._found("I7", f"ended with {code}, with both clusters there", command.logged[-2500:])
        return f"exit {code}{self._states(recorded)}"

    def _op_live(self, op: Op) -> str:
        if self._live:
            return "-"
        self._is_unseen = False
        self._live.append(Command(self._folder, "run", str(self._config()), "--json"))
        return self._op_settle(op)

    def _op_settle(self, _op: Op) -> str:
        """Wait until the mirror says of each partition that it is caught up or stopped."""
        if not self._live:
            return "-"
        deadline, command, restless = time.monotonic() + self._timeout_s, self._live[-1], list[str]()
        while command.is_alive and time.monotonic() < deadline:
            self._source = self._readers["source"].topics(self._names)
            recorded = self._recorded()
            if not (restless := self._restless(recorded, command)):
                self._read_again()
                self._judge_states(recorded, command)
                self._caught_up(recorded, command)
                return f"settled{self._states(recorded)}"
            time.sleep(0.2)
        if not command.is_alive:
            return f"the mirror ended with {command.wait(1)}"
        self._found("I7", "a live mirror does not come to rest", f"{restless}; {command.logged[-1500:]}")
        return f"not settled: {restless}"

    def _op_kill(self, _op: Op) -> str:
        if not self._live:
            return "-"
        self._live.pop().end()
        return "killed"

    def _op_end(self, _op: Op) -> str:
        if not self._live:
            return "-"
        command = self._live.pop()
        code = self._end(command, signal.SIGTERM)
        self._read_again()
        self._judge_states(self._recorded(), command)
        return f"exit {code}"

    def _op_second(self, op: Op) -> str:
        """Another flow into the same target topics."""
        self._flow_causes.add("second flow")
        flow = f"{self._tag}-2"
        before = self._recorded().copies
        code, _ = self._command("run", str(self._config(flow)), "--once", "--json")
        is_free = self._failed_over or "journal lost" in self._flow_causes
        after = self._recorded(flow).copies if not is_free else {}
        for name, topic_id in before.items() & after.items():
            if name in self._target and topic_id == str(self._target[name].id):
                self._found("I1", "two flows write to one topic", f"{name}: exit {code}")
        copy = self._copies.get(self._names[op.topic])
        if code == 0 and copy is not None and copy.owned and copy.causes:
            self._read_again()
            self._equal("another flow's run --once said 0", Recorded())
        return f"exit {code}"

    def _op_leave_out(self, _op: Op) -> str:
        """Damage may be left out from the next start on."""
        if self._live:
            return "-"
        self._skips_damage = True
        for copy in self._copies.values():
            copy.standing = {number: state for number, state in copy.standing.items() if state != "CORRUPT"}
        return "on_damage: skip"

    def _op_reload_bad(self, _op: Op) -> str:
        if not self._live:
            return "-"
        self._config(include=f"{self._tag}\\.nothing")
        self._live[-1].send(signal.SIGHUP)
        time.sleep(1.5)
        self._config()
        return "read a configuration that fits nothing"

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
        code = self._end(command, signal.SIGCONT)
        self._read_again()
        recorded = self._recorded()
        self._judge_states(recorded, command)
        if reported.startswith("exit 0"):
            self._equal("run --once said 0, before the first mirror went on", recorded)
            if (states := self._states(recorded)) not in reported:
                self._found("I8", "reports went back", f"{reported}, and once the first mirror went on:{states}")
        return f"overtaken: {reported}; went on: exit {code}{self._states(recorded)}"

    def _op_asleep(self, op: Op) -> str:
        """A command is suspended right before one of its orders to the target, and goes on behind what somebody did
        meanwhile: a stranger's topic in the place of a copy, a source topic made anew, another mirror's whole run.
        """
        name, meanwhile = op.kind.split("/")
        if self._live or (name == "undo") != self._failed_over:
            return "-"
        path = str(self._config(epoch_s=ONCE_SECONDS))
        arguments = {
            "run": ("run", path, "--once", "--json"),
            "failover": ("failover", path, "--json"),
            "undo": ("failover", path, "--undo"),
        }.get(name, (name, path, self._names[op.topic]))
        command = Command(self._folder, *arguments, halts_before=ORDERS[op.amount])
        while command.is_alive and not command.is_suspended:
            time.sleep(0.005)
        done = "fewer orders"
        if command.is_suspended:
            self._judge()  # what it did before
            self._failed_over |= "failover_recorded" in command.logged
            done = self._meanwhile(meanwhile, op)
            time.sleep(SUSPENDED_SECONDS * op.partition)
        code = self._end(command, signal.SIGCONT)
        self._read_again()
        recorded = self._recorded()
        self._judge_states(recorded, command)
        if name in {"failover", "undo"} and code in {0, 4, 7}:
            self._failed_over = name == "failover"
        if name == "failover" and code == 0 and meanwhile == "overtaken":
            self._equal("failover said 0", recorded, "I3")
            self._judge_moved_groups(command)
        if meanwhile == "recreated" and not op.partition:  # between its last question and its order
            self._baseline = self._baseline[0], self._configs, self._baseline[2]
        if name in {"accept", "adopt"} and code in {0, 4}:
            for copy in self._copies.values():
                copy.resolve()
        return f"{done}; exit {code}{self._states(recorded)}"

    def _meanwhile(self, what: str, op: Op) -> str:
        if what == "replaced":
            return f"{self._op_delete_target(op)}, {self._op_stranger_topic(replace(op, amount=7))}"
        if what == "recreated":
            return self._op_recreate(replace(op, kind="forever"))
        self._flow_causes.add("twin")
        self._op_produce(Op("produce", op.topic, op.partition, 5, "plain"))
        return self._op_run(op)

    def _op_verify(self, _op: Op) -> str:
        code, command = self._command("verify", str(self._config()), "--json", "--no-spark")
        self._read_again()
        recorded = self._recorded()
        unequal = self._unequal(recorded)
        if code == 0:
            for damage in self._damage_in_both():
                self._found("I8", "verify said 0 over damage", damage)
            for found in unequal:
                if found.what.startswith("records ") or found.what == "there is no copy":
                    self._found("I8", found.what, f"verify said 0, but {found.detail}")
        elif code == 5 and not unequal and not self._schedule.translates and not self._live:
            is_excused = any(copy.start or copy.expires or copy.compacted for copy in self._copies.values())
            is_excused |= any(self._damaged.values())  # what cannot be read is not equal to anything
            for name, topic in self._source.items():
                copied = self._target.get(name)
                is_excused |= copied is None or copied.partitions.keys() != topic.partitions.keys()
            if not is_excused and not any(recorded.losses.values()):
                self._found("I8", "equal, but reported as different", command.printed[-1500:])
        return f"exit {code}"

    def _damage_in_both(self) -> Iterator[str]:
        """Say what is damaged of offsets that both sides have."""
        for name, partition, log, copied, _ in self._pairs():
            begin = 0 if self._schedule.translates else log.start
            for side, held in zip(SIDES, (log, copied), strict=True):
                damaged = self._damage(side, (name, partition), held) if held else []
                yield from (f"{name}-{partition} of the {side}: {batch}" for batch in damaged if batch[1] > begin)

    def _op_accept(self, op: Op) -> str:
        name = self._names[op.topic]
        if (copy := self._copies.get(name)) is not None and "target set" in copy.causes:
            return "-"  # other times would be accepted, and stay differences
        advice = [standing.detail for place, standing in self._recorded().states.items() if place[0] == name]
        options = ("--unconfirmed",) if any("--unconfirmed" in detail for detail in advice) else ()
        code, command = self._command("accept", str(self._config()), name, "--json", *options)
        said = json.loads(command.printed) if code in {0, 4} else {}
        resolved = {part["partition"] for kind in ("losses", "confirmed", "lifted") for part in said.get(kind, ())}
        if not options:
            self._judge_lifted(name, said.get("lifted", ()))
        if copy is not None and code:
            for partition in resolved:  # others stay stopped
                copy.standing.pop(partition, None)
        elif resolved:
            self._promised[name] = self._place
            if copy is not None:
                copy.resolve()
                copy.others = copy.kept = False
        if copy is not None and options and copy.causes & {"stranger", "second flow"}:
            copy.confirmed |= {part["partition"]: part["offset"] for part in said.get("confirmed", ())}
        return f"exit {code}"

    def _op_pause(self, op: Op) -> str:
        (self._paused.add if op.name == "pause" else self._paused.discard)(self._names[op.topic])
        return f"exit {self._command(op.name, str(self._config()), self._names[op.topic])[0]}"

    _op_resume = _op_pause

    def _op_failover(self, _op: Op) -> str:
        code, command = self._command("failover", str(self._config()), "--json")
        if code == 2 and self._live:  # its journal is being written again: a person tries again
            time.sleep(5)
            code, command = self._command("failover", str(self._config()), "--json")
        return self._judge_failover(code, command)

    def _op_failover_killed(self, op: Op) -> str:
        """One that is lost as soon as the journal has it, and another one that finishes it."""
        command = Command(self._folder, "failover", str(self._config()), "--json")
        deadline = time.monotonic() + self._timeout_s
        while command.is_alive and "failover_recorded" not in command.logged and time.monotonic() < deadline:
            time.sleep(0.005)
        command.end()
        if "failover_recorded" not in command.logged:
            return f"exit {command.wait(0)}"
        self._failed_over = True
        was_reported = bool(command.printed)
        reported = self._op_failover(op)
        if reported == "exit 3" and not was_reported:
            self._found("I3", "a failover cannot be finished", command.logged[-1500:])
        return f"killed; {reported}"

    def _op_undo(self, _op: Op) -> str:
        if not self._failed_over:
            return "-"
        code, _ = self._command("failover", str(self._config()), "--undo")
        if code == 0:
            self._failed_over = False
        return f"exit {code}"

    def _op_translate(self, op: Op) -> str:
        """Ask where an offset of a source partition is, at a share of what the copy holds: the same record is there."""
        name, copy = self._names[op.topic], self._copies.get(self._names[op.topic])
        if (before := self._target.get(name)) is None or not (log := before.partitions.get(op.partition)):
            return "-"
        asked = str(log.start + (log.end - log.start) * op.amount // 100)
        arguments = str(self._config()), name, str(op.partition), asked, "--json"
        code, command = self._command("offsets", "translate", *arguments)
        self._read_again()
        if code != 0:
            return f"exit {code}"
        found, place = json.loads(command.printed), f"{name}-{op.partition}: {command.printed}"
        if copy is None or not copy.owned:
            self._found("I8", "offsets are translated for no copy", place)
        elif not self._failed_over and found["target_offset"] >= copy.confirmed.get(op.partition, 0):
            held, copied = (
                topics.get(name, Topic(None, {})).partitions.get(op.partition, Log(0, 0, 0)).records
                for topics in (self._source, self._target)
            )
            record, original = copied.get(found["target_offset"]), held.get(found["source_offset"])
            same = Allowed(own_times=copy.own_times)
            if record is not None and original is not None and text_of(record, same) != text_of(original, same):
                detail = f"{place}: {record.text}, the source's is {original.text}"
                self._found("I8", "an offset is translated to another record", detail)
        return f"exit {code}"
