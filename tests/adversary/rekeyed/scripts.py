"""What is done to re-keyed topics and to their mirror, and when: drawn from a seed. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from random import Random
from typing import Any, Final

from adversary.logs import Record
from adversary.operations import KINDS, Op

#: Topics of a session, and how many turns it has.
TOPICS: Final = 6
TURNS: Final = 5
#: What happens to the mirror in a turn, and how often: it is frozen, killed (SIGKILL) or ended (SIGTERM) and started
#: again, or failed over, which is undone.
ACTS: Final[dict[str, float]] = {"none": 3, "freeze": 3, "kill": 3, "end": 1, "failover": 1}
#: What happens to a topic, turn by turn; behind the bar, while the mirror is frozen, dead or failed over. `anew` is
#: what pages advise behind a stop: the copy is deleted, with its progress.
MOTIFS: Final = (
    ("produce", "cut_target", "produce"),
    ("produce | cut_target produce", "produce", "expire_source"),
    ("produce cut_target produce", "", "produce"),
    ("cut_source produce produce", "produce", "expire_source"),
    ("| cut_source", "produce produce", "expire_source produce"),
    ("| cut_source produce produce expire_source", "produce", "anew produce"),
    ("produce | cut_source produce", "expire_source", "anew", "produce"),
    ("| produce expire_source produce", "produce", "accept", "anew produce"),
    ("pause produce expire_source", "resume produce", "produce"),
    ("delete_copy", "produce", "delete_progress", "produce"),
    ("| delete_copy produce", "produce", "anew", "produce"),
    ("anew", "produce", "cut_target", "produce"),
    ("| anew produce", "produce", "stranger"),
    ("recreate produce", "produce", "anew", "produce"),
    ("delete_source", "produce", "anew", "produce"),
    ("grow produce", "produce", "cut_source"),
    ("| stranger produce", "", "anew produce"),
    ("stranger expire_target", "produce", "produce"),
    ("expire_target", "produce", "cut_target", "produce"),
    ("| cut_progress", "produce", "anew", "produce"),
    ("produce | cut_progress produce", "produce", "produce"),
    ("delete_progress", "produce", "anew", "produce"),
    ("accept", "produce | produce", "accept"),
)
OPERATIONS: Final = tuple(sorted({name for motif in MOTIFS for turn in motif for name in turn.split()} - {"|"}))


@dataclass(frozen=True, slots=True)
class Rule:
    """What re-keys a topic. `by`: "value" takes the last character of a value, so that a tombstone is a bad record;
    "key" makes a new key of the one that there is; "nothing" keeps it. `filters`: values that end with 7 are left out.
    """

    by: str
    partitions: int
    filters: bool
    on_bad_record: str

    def settings(self, match: str, letters: str) -> dict[str, Any]:
        """As `topics.rules` has it."""
        made: dict[str, Any] = {"match": match, "partitions": self.partitions, "on_bad_record": self.on_bad_record}
        if self.by != "nothing":
            made["rekey"] = "substring(string(value), -1)" if self.by == "value" else "concat('r-', string(key))"
        if self.filters:
            made["where"] = "coalesce(string(value), '') NOT LIKE '%7'"
        if self.on_bad_record == "dead-letter":
            made["dead_letter"] = letters
        return made

    def is_bad(self, one: Record) -> bool:
        """Whether it cannot be re-keyed."""
        return self.by == "value" and one.value is None

    def key_of(self, one: Record) -> bytes | None:
        """The new key, None of a record that is not wanted."""
        if self.is_bad(one) or (self.filters and (one.value or b"").endswith(b"7")):
            return None
        if self.by == "value":
            return (one.value or b"")[-1:]
        return b"r-" + (one.key or b"") if self.by == "key" else one.key


@dataclass(frozen=True, slots=True)
class Turn:
    """What happens to the mirror, after so many milliseconds; and to the topics before that, and meanwhile."""

    act: str
    after_ms: int
    before: tuple[Op, ...]
    amid: tuple[Op, ...]

    def __str__(self) -> str:
        return f"{', '.join(map(str, self.before))} | {self.act} {self.after_ms}: {', '.join(map(str, self.amid))}"


@dataclass(frozen=True, slots=True)
class Session:
    """`continues`: the mirror goes on behind what the source deleted. `rules` and `partitions`, which the source has,
    are by topic.
    """

    seed: int
    continues: bool
    rules: tuple[Rule, ...]
    partitions: tuple[int, ...]
    turns: tuple[Turn, ...]

    def __str__(self) -> str:
        topics = ", ".join(
            f"{letter}: {rule.by} {count} to {rule.partitions}, {rule.on_bad_record}{', filters' * rule.filters}"
            for letter, rule, count in zip("abcdefgh", self.rules, self.partitions, strict=False)
        )
        return f"seed {self.seed} [{topics}{'; continues' * self.continues}]"

    def part(self, topics: Collection[int], turns: int = TURNS) -> Session:
        """What these topics have of its first turns; the others stay empty."""

        def kept(ops: Sequence[Op]) -> tuple[Op, ...]:
            return tuple(op for op in ops if not topics or op.topic in topics)

        shown = self.turns[:turns]
        return replace(self, turns=tuple(replace(t, before=kept(t.before), amid=kept(t.amid)) for t in shown))


def session(seed: int) -> Session:
    """The session of a seed; what a topic does is drawn apart from the others."""
    chance = Random(f"rekeyed {seed}")
    acts = ["none", *chance.choices([*ACTS], [*ACTS.values()], k=TURNS - 1)]
    scripts = [_script(Random(f"rekeyed {seed} {number}"), number) for number in range(TOPICS)]
    turns = []
    for number, act in enumerate(acts):
        before, amid = ((_in_turn(script[2][number][phase] for script in scripts)) for phase in (0, 1))
        turns.append(Turn(act, chance.choice((0, 100, 400, 1000, 2000)), before, amid))
    return Session(
        seed=seed,
        continues=chance.random() < 0.25,
        rules=tuple(script[0] for script in scripts),
        partitions=tuple(script[1] for script in scripts),
        turns=tuple(turns),
    )


def _in_turn(scripts: Iterator[list[Op]]) -> tuple[Op, ...]:
    """One operation of each topic after the other."""
    return tuple(op for ops in zip_longest(*scripts) for op in ops if op is not None)


def _script(chance: Random, number: int) -> tuple[Rule, int, list[tuple[list[Op], list[Op]]]]:
    """A topic's rule, its partitions, and its operations, turn by turn: before the mirror's act, and meanwhile."""
    by = chance.choice(("value", "value", "key", "nothing"))
    bad = chance.choice(("drop", "drop", "dead-letter", "stop"))
    rule = Rule(by, chance.choice((2, 3, 4)), filters=chance.random() < 0.25, on_bad_record=bad)
    turns: list[tuple[list[Op], list[Op]]] = [([_drawn(chance, "produce", number) for _ in range(2)], [])]
    while len(turns) < TURNS:
        for words in chance.choice(MOTIFS):
            before, _, amid = words.partition("|")
            names = before.split(), amid.split()
            if chance.random() < 0.3:
                names[chance.randrange(2)].insert(0, "produce")
            if chance.random() < 0.08:
                names[chance.randrange(2)].append(chance.choice(OPERATIONS))
            first, second = ([_drawn(chance, name, number) for name in phase] for phase in names)
            turns.append((first, second))
    return rule, chance.choice((1, 1, 2)), turns[:TURNS]


def _drawn(chance: Random, name: str, number: int) -> Op:
    if name == "produce":
        return Op(name, number, chance.randrange(2), chance.randrange(1, 40), chance.choice((*KINDS, "keyed")))
    kind = chance.choice(("plain", "commit", "abort")) if name == "stranger" else ""
    # a share, in percent, wherever an amount is one of what is there
    return Op(name, number, chance.randrange(4), chance.choice((0, 25, 50, 75, 90, 100)), kind)
