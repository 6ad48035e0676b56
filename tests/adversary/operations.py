"""Schedules: what is done, in which order, drawn from a seed. Operations are values; those that do not fit when their
turn comes do nothing, so that any part of a schedule is a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

#: How often each is drawn. What touches brokers' files costs a restart, so it is rarer than it deserves.
WEIGHTS: Final[dict[str, float]] = {
    "produce": 12,
    "commit": 3,
    "expire_source": 3,
    "expire_target": 3,
    "cut_source": 2.5,
    "cut_target": 2,
    "cut_journal": 0.7,
    "delete_journal": 1,
    "recreate": 3,
    "delete_source": 1,
    "grow": 1,
    "configure": 2,
    "stranger_writes": 2.5,
    "stranger_topic": 1.5,
    "clash": 0.7,
    "appear": 0.7,
    "delete_target": 2,
    "run": 12,
    "live": 5,
    "settle": 3,
    "kill": 1,
    "freeze": 1,
    "end": 1,
    "twin": 0.7,
    "second": 1,
    "pause": 1,
    "resume": 1,
    "accept": 2.5,
    "adopt": 0.7,
    "failover": 1.5,
    "undo": 1.5,
    "verify": 1.5,
    "reload_bad": 0.7,
    "reload_good": 0.7,
    "rename": 0.8,
    "continue_on_loss": 0.7,
    "hang": 0.4,
}
#: Sequences that are known to hurt, as their operations' names: drawn whole, with others in between.
MOTIFS: Final = (
    ("cut_source", "produce", "produce", "run"),
    ("cut_source", "run", "produce", "produce", "run"),
    ("cut_source", "run", "expire_target", "produce", "run"),
    ("cut_target", "produce", "run"),
    ("cut_target", "run", "expire_target", "run"),
    ("live", "cut_target", "produce", "settle"),
    ("live", "cut_source", "produce", "settle", "produce", "settle"),
    ("stranger_writes", "run", "expire_target", "produce", "run"),
    ("stranger_writes", "produce", "run", "expire_source", "run"),
    ("failover", "stranger_writes", "expire_target", "undo", "produce", "run"),
    ("expire_target", "produce", "run"),
    ("recreate", "produce", "run"),
    ("recreate", "run", "delete_target", "run"),
    ("live", "recreate", "settle", "delete_target", "settle"),
    ("live", "delete_journal", "failover", "produce", "settle"),
    ("live", "cut_journal", "failover", "produce", "settle"),
    ("delete_journal", "run"),
    ("produce", "expire_source", "run", "accept", "run"),
    ("produce", "expire_source", "run", "produce", "accept", "expire_target", "run"),
    ("second", "produce", "run"),
    ("commit", "expire_target", "commit", "run"),
    ("commit", "cut_target", "run", "commit"),
    ("rename", "run", "failover"),
    ("rename", "run", "rename", "produce", "run"),
    ("commit", "pause", "produce", "commit", "failover"),
    ("live", "clash", "settle"),
    ("live", "stranger_topic", "settle"),
    ("live", "reload_bad", "settle"),
    ("live", "twin", "produce", "settle"),
    ("live", "produce", "kill", "produce", "run"),
    ("live", "freeze", "produce", "settle", "failover"),
    ("live", "configure", "settle"),
    ("live", "delete_source", "settle"),
    ("live", "grow", "produce", "settle"),
    ("live", "clash", "appear", "grow", "settle"),
    ("live", "produce", "settle", "produce", "settle", "produce", "settle", "cut_journal", "failover", "produce"),
    ("live", "produce", "settle", "produce", "settle", "delete_journal", "failover", "produce", "settle"),
    ("rename", "run", "commit", "failover"),
    ("cut_source", "produce", "produce", "expire_source", "run"),
    ("cut_journal", "cut_source", "produce", "produce", "run"),
    ("cut_source", "produce", "produce", "expire_source", "run", "accept", "run"),
    ("stranger_writes", "run", "cut_target", "run"),
    ("stranger_writes", "expire_target", "produce", "run"),
    ("recreate", "produce", "produce", "expire_source", "run", "accept", "run"),
)
#: What is drawn besides where brokers' files are played with: "damage" is of the source, or of the target.
_ON_DISKS: Final[dict[str, float]] = {"damage_source": 4, "damage_target": 2, "restore": 5, "leave_out": 2}
_ON_DISKS_MOTIFS: Final = (
    ("damage_source", "run", "produce", "run"),
    ("damage_source", "run", "accept", "run", "verify"),
    ("damage_source", "leave_out", "produce", "run", "verify"),
    ("live", "produce", "damage_source", "settle", "produce", "settle"),
    ("damage_source", "live", "accept", "settle", "verify"),
    ("damage_target", "verify", "produce", "run", "verify"),
    ("run", "damage_target", "run", "failover"),
    ("produce", "restore"),
    ("expire_source", "restore", "produce", "restore"),
    ("recreate", "produce", "restore", "run"),
    ("delete_source", "restore"),
    ("damage_source", "restore", "run"),
    ("commit", "produce", "restore", "commit"),
    ("configure", "produce", "run", "restore"),
    ("cut_source", "produce", "restore"),
    ("configure", "produce", "run", "configure", "produce", "run", "verify"),
)
#: What is drawn besides where somebody plays with the settings of copies.
_SET: Final[dict[str, float]] = {"set_target": 6}
_SET_MOTIFS: Final = (
    ("live", "set_target", "produce", "settle", "produce", "settle"),
    ("run", "set_target", "produce", "run"),
    ("live", "set_target", "kill", "produce", "run"),
    ("set_target", "failover"),
)
#: What is drawn besides where the commands around a copy are played with: asked for offsets, and killed in their midst.
_AROUND: Final[dict[str, float]] = {"failover_killed": 3, "translate": 6}
_AROUND_MOTIFS: Final = (
    ("commit", "produce", "failover_killed"),
    ("live", "commit", "produce", "settle", "failover_killed"),
    ("failover_killed", "undo", "produce", "run", "translate"),
    ("stranger_topic", "translate"),
    ("run", "produce", "stranger_writes", "translate", "run", "translate"),
    ("run", "recreate", "produce", "translate"),
    ("run", "delete_target", "translate", "run", "translate"),
    ("cut_source", "produce", "translate", "run", "translate"),
    ("expire_target", "translate", "failover", "translate"),
)
#: What is drawn besides where somebody changes his mind about which offsets a copy has.
_WAYS: Final[dict[str, float]] = {"other_way": 8}
_WAYS_MOTIFS: Final = (
    ("run", "expire_target", "other_way", "run"),
    ("run", "other_way", "produce", "run"),
    ("other_way", "produce", "other_way", "run"),
    ("commit", "run", "expire_target", "other_way", "produce", "commit", "run"),
    ("cut_journal", "other_way", "produce", "run"),
    ("other_way", "failover", "produce"),
)
#: Where a stop stands whose evidence is gone by the time that a person decides.
_LATE_MOTIFS: Final = (
    ("cut_source", "run", "produce", "produce", "expire_source", "accept", "run"),
    ("cut_source", "run", "produce", "produce", "expire_source", "expire_target", "accept", "produce", "run"),
    ("live", "cut_source", "settle", "produce", "produce", "expire_source", "accept", "settle"),
    ("stranger_writes", "run", "expire_target", "produce", "expire_source", "accept", "run"),
    ("cut_target", "expire_source", "run", "expire_target", "accept", "produce", "run"),
)
#: What is drawn besides where people take topics for copies that are none.
_VOUCHED: Final[dict[str, float]] = {"vouch": 8}
_VOUCHED_MOTIFS: Final = (
    ("stranger_topic", "vouch", "adopt", "run"),
    ("produce", "expire_source", "stranger_topic", "vouch", "adopt", "produce", "run"),
    ("run", "delete_target", "produce", "produce", "produce", "expire_source", "stranger_topic", "vouch", "adopt"),
    ("run", "delete_journal", "expire_source", "vouch", "adopt", "run"),
)
#: What is drawn besides where somebody gives copies more partitions than their sources have.
_GROWN: Final[dict[str, float]] = {"grow_target": 6}
_GROWN_MOTIFS: Final = (
    ("live", "grow_target", "grow_target", "grow", "produce", "produce", "settle"),
    ("run", "grow_target", "grow", "produce", "run"),
    ("run", "grow_target", "produce", "failover"),
    ("live", "grow", "grow_target", "settle", "grow", "produce", "settle"),
)
#: Where names lead to something else than before: an address to another cluster, a topic's name to another topic.
_ASTRAY: Final[dict[str, float]] = {"failover_astray": 4}
_ASTRAY_MOTIFS: Final = (
    ("live", "commit", "produce", "produce", "failover_astray"),
    ("live", "pause", "produce", "commit", "failover_astray"),
    ("pause", "live", "produce", "failover_astray"),
    ("live", "commit", "recreate", "produce", "commit", "settle"),
    ("commit", "run", "recreate", "produce", "commit", "run"),
    ("commit", "recreate", "produce", "commit", "failover"),
)
#: What is drawn besides where a live mirror is frozen for so long that another one finishes its work.
_SUSPENDED: Final[dict[str, float]] = {"overtake": 8}
_SUSPENDED_MOTIFS: Final = (
    ("live", "produce", "overtake", "produce", "run"),
    ("live", "commit", "produce", "overtake", "commit", "run"),
    ("live", "produce", "overtake", "expire_source", "expire_target", "run"),
    ("expire_source", "live", "produce", "overtake", "run"),
)
#: What is drawn besides where a task hangs while its source is cut and grows again, and the flow is failed over.
_HUNG: Final[dict[str, float]] = {"hung_task": 4}
_HUNG_MOTIFS: Final = (
    ("produce", "live", "commit", "settle", "hung_task"),
    ("live", "produce", "produce", "settle", "hung_task", "undo", "run"),
)
#: What is drawn besides where operators set the mirror's own topics as all others of the cluster are set, and where an
#: application sends the same record again and again, so that a batch is the source's at many offsets.
_OPERATED: Final[dict[str, float]] = {"set_journal": 8, "alike": 6}
_OPERATED_MOTIFS: Final = (
    ("live", "produce", "set_journal", "produce", "settle", "produce", "failover"),
    ("set_journal", "produce", "run", "failover", "undo", "produce", "run"),
    ("live", "set_journal", "kill", "produce", "run"),
    ("live", "set_journal", "twin", "produce", "settle"),
    ("cut_source", "run", "set_journal", "produce", "run", "accept", "run"),
    ("live", "alike", "settle", "stranger_writes", "alike", "settle"),
    ("alike", "run", "stranger_writes", "alike", "run"),
    ("alike", "run", "cut_source", "alike", "alike", "run"),
    ("alike", "run", "cut_target", "alike", "run"),
)
#: What is drawn besides where a command is suspended right before one of its orders: which command, and what somebody
#: does meanwhile.
_ASLEEP: Final[dict[str, float]] = {"asleep": 10}
ASLEEP_KINDS: Final = tuple(
    f"{command}/{meanwhile}"
    for command in ("run", "failover", "undo", "accept", "adopt")
    for meanwhile in ("replaced", "recreated", "overtaken")
)
_ASLEEP_MOTIFS: Final = (
    ("asleep", "run"),
    ("configure", "asleep", "run"),
    ("grow", "configure", "asleep", "run"),
    ("commit", "produce", "asleep", "produce", "run"),
    ("delete_source", "asleep", "run"),
    ("cut_source", "run", "produce", "asleep", "run"),
    ("stranger_topic", "asleep", "run"),
    ("commit", "failover", "asleep", "run"),
    ("expire_source", "configure", "asleep", "produce", "run"),
)
#: What restarts or hangs a broker, for whoever shares the clusters.
DISTURBING: Final = frozenset({"cut_source", "cut_target", "cut_journal", "hang", "hung_task"})
#: After which more records may hide what happened.
LIFTING: Final = frozenset(
    {"cut_source", "cut_target", "recreate", "expire_target", "hung_task", "stranger_writes", "undo"}
)
#: Kinds of what is produced.
KINDS: Final = ("plain", "commit", "abort", "keyed", "old")
#: Settings of topics, by name: what a person might create one with.
TOPIC_CONFIGS: Final[dict[str, dict[str, str]]] = {
    "default": {},
    "forever": {"retention.ms": "-1"},
    "week": {"retention.ms": "604800000"},
    "short": {"retention.ms": "1000"},
    "compact": {"cleanup.policy": "compact"},
    "append": {"message.timestamp.type": "LogAppendTime"},
    "small": {"max.message.bytes": "300"},
    "segments": {"segment.bytes": "1048576", "segment.ms": "100"},
}
#: What somebody might set on a copy, by name.
COPY_CONFIGS: Final[dict[str, dict[str, str]]] = {
    "stamps": {"message.timestamp.type": "LogAppendTime"},
    "gzip": {"compression.type": "gzip"},
    "small": {"max.message.bytes": "300"},
}
#: What somebody might set on the flow's journal, by name: none of it loses a record.
JOURNAL_CONFIGS: Final[dict[str, dict[str, str]]] = {
    "lz4": {"compression.type": "lz4"},
    "zstd": {"compression.type": "zstd"},
    "stamps": {"message.timestamp.type": "LogAppendTime"},
    "segments": {"segment.bytes": "1048576", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"},
}


@dataclass(frozen=True, slots=True)
class Repertoire:
    """What schedules are drawn from: how often each operation is, what is drawn whole, what topics are set to, and what
    the first ones are created with.
    """

    weights: dict[str, float]
    motifs: tuple[tuple[str, ...], ...]
    configs: tuple[str, ...]
    created: tuple[str, ...] = ("default", "forever", "forever", "compact")


#: By name. A seed means another schedule in each, so that one can be added to without a change to the others.
REPERTOIRES: Final[dict[str, Repertoire]] = {
    "clusters": Repertoire(WEIGHTS, MOTIFS, ("default", "forever", "week", "short", "compact", "append")),
    "disks": Repertoire(WEIGHTS | _ON_DISKS, MOTIFS[::4] + _ON_DISKS_MOTIFS * 2, tuple(TOPIC_CONFIGS)),
    "segments": Repertoire(
        WEIGHTS | _ON_DISKS, _ON_DISKS_MOTIFS, ("default", "forever", "week", "compact"), ("segments",)
    ),
    "ways": Repertoire(WEIGHTS | _WAYS, MOTIFS[::4] + _WAYS_MOTIFS * 4, ("default", "forever", "week", "compact")),
    "settings": Repertoire(WEIGHTS | _SET, MOTIFS[::4] + _SET_MOTIFS * 4, ("default", "forever", "week", "compact")),
    "late": Repertoire(WEIGHTS, MOTIFS[::4] + _LATE_MOTIFS * 4, ("default", "forever", "week", "compact")),
    "vouched": Repertoire(
        WEIGHTS | _VOUCHED, MOTIFS[::4] + _VOUCHED_MOTIFS * 4, ("default", "forever", "week", "compact")
    ),
    "grown": Repertoire(WEIGHTS | _GROWN, MOTIFS[::4] + _GROWN_MOTIFS * 4, ("default", "forever", "week", "compact")),
    "astray": Repertoire(
        WEIGHTS | _ASTRAY, MOTIFS[::4] + _ASTRAY_MOTIFS * 4, ("default", "forever", "week", "compact")
    ),
    "suspended": Repertoire(
        WEIGHTS | _SUSPENDED, MOTIFS[::4] + _SUSPENDED_MOTIFS * 4, ("default", "forever", "week", "compact")
    ),
    "hung": Repertoire(WEIGHTS | _HUNG, MOTIFS[::4] + _HUNG_MOTIFS * 4, ("default", "forever", "week", "compact")),
    "operated": Repertoire(
        WEIGHTS | _OPERATED, MOTIFS[::4] + _OPERATED_MOTIFS * 4, ("default", "forever", "week", "compact")
    ),
    "asleep": Repertoire(
        WEIGHTS | _ASLEEP, MOTIFS[::4] + _ASLEEP_MOTIFS * 4, ("default", "forever", "week", "short", "compact")
    ),
    "around": Repertoire(
        WEIGHTS | _AROUND, MOTIFS[::4] + _AROUND_MOTIFS * 2, ("default", "forever", "week", "compact")
    ),
}


@dataclass(frozen=True, slots=True)
class Op:
    """One operation: on which topic (by number) and partition, how much of it, and of which kind."""

    name: str
    topic: int = 0
    partition: int = 0
    amount: int = 0
    kind: str = ""

    def __str__(self) -> str:
        rest = [f"{key}={value}" for key in ("partition", "amount", "kind") if (value := getattr(self, key))]
        return f"{self.name}({', '.join(['abcdefgh'[self.topic], *rest])})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A flow's settings, the topics that there are at first, and what happens then. `created` are the kinds of
    settings (`TOPIC_CONFIGS`) of the source's first topics, `partitions` how many each has. `lasts`: tasks live longer
    than the schedule, so that what they do not notice by themselves stays unnoticed.
    """

    seed: int
    repertoire: str
    translates: bool
    deletes: bool
    acls: bool
    continues: bool
    tasks: int
    lasts: bool
    created: tuple[str, ...]
    partitions: tuple[int, ...]
    operations: tuple[Op, ...]

    def part(self, places: Sequence[int]) -> Schedule:
        """The same with these of its operations alone."""
        return replace(self, operations=tuple(self.operations[place] for place in places))

    @property
    def disturbs(self) -> bool:
        """Whether it restarts or hangs brokers."""
        return any(op.name in DISTURBING for op in self.operations)

    def __str__(self) -> str:
        traits = [name for name in ("translates", "deletes", "acls", "continues", "lasts") if getattr(self, name)]
        topics = ", ".join(f"{kind} x{count}" for kind, count in zip(self.created, self.partitions, strict=True))
        where = f" of {self.repertoire}" if self.repertoire != "clusters" else ""
        return f"seed {self.seed}{where} [{topics}{'; ' if traits else ''}{', '.join(traits)}]"


def schedule(seed: int, repertoire: str = "clusters", *, without: frozenset[str] = frozenset()) -> Schedule:
    """The schedule of a seed; `without` leaves kinds of operations out."""
    chance, drawn = Random(seed), REPERTOIRES[repertoire]
    topics = chance.choice((1, 1, 2))
    created = tuple(chance.choice(drawn.created) for _ in range(topics))
    partitions = tuple(chance.choice((1, 1, 2)) for _ in range(topics))
    traits = {
        "translates": chance.random() < 0.25,
        "deletes": chance.random() < 0.25,
        "acls": chance.random() < 0.1,
        "continues": chance.random() < 0.15,
    }
    operations = [_produced(chance, topics) for _ in range(chance.randrange(1, 4))]
    if chance.random() < 0.15 and "stranger_topic" not in without:
        operations.insert(0, _drawn(chance, topics, "stranger_topic", drawn.configs))
    operations += [_drawn(chance, topics, "commit", drawn.configs)] * (chance.random() < 0.5)
    operations.append(Op("live" if chance.random() < 0.3 else "run"))
    names = [name for name in drawn.weights if name not in without]
    weights = [drawn.weights[name] for name in names]
    motifs = [motif for motif in drawn.motifs if not without.intersection(motif)]
    for _ in range(chance.choice((1, 1, 2))):
        target = chance.randrange(topics)
        for name in chance.choice(motifs):
            operations.append(replace(_drawn(chance, topics, name, drawn.configs), topic=target))
            if chance.random() < 0.15:
                operations.append(_drawn(chance, topics, chance.choices(names, weights)[0], drawn.configs))
    for name in chance.choices(names, weights, k=chance.randrange(4)):
        operations.append(_drawn(chance, topics, name, drawn.configs))
        if name in LIFTING and chance.random() < 0.5:
            operations.append(_produced(chance, topics))
    operations += [Op("run"), Op("verify")]
    tasks, lasts = chance.choice((1, 2)), chance.random() < 0.2
    return Schedule(
        seed=seed,
        repertoire=repertoire,
        **traits,
        tasks=tasks,
        lasts=lasts,
        created=created,
        partitions=partitions,
        operations=(*operations,),
    )


def _produced(chance: Random, topics: int) -> Op:
    kind = chance.choice((*KINDS, "plain"))
    return Op("produce", chance.randrange(topics), chance.randrange(2), chance.randrange(1, 30), kind)


def _drawn(chance: Random, topics: int, name: str, configs: Sequence[str]) -> Op:
    if name == "produce":
        return _produced(chance, topics)
    kind = ""
    if name in {"recreate", "configure"}:
        kind = chance.choice(configs)
    if name == "set_journal":
        kind = chance.choice(tuple(JOURNAL_CONFIGS))
    if name == "set_target":
        kind = chance.choice(tuple(COPY_CONFIGS))
    if name == "reload_good":
        kind = chance.choice(("exclude", "groups", "same"))
    if name == "asleep":
        kind = chance.choice(ASLEEP_KINDS)
    # a share, in percent, wherever an amount is one of what is there
    return Op(name, chance.randrange(topics), chance.randrange(2), chance.choice((0, 25, 50, 75, 90, 100)), kind)
