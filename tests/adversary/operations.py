"""Schedules: what is done, in which order, drawn from a seed. Operations are values; those that do not fit when their
turn comes do nothing, so that any part of a schedule is a schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

#: How often each operation is drawn: on the source, on the target, and with the mirror. What touches brokers' files
#: costs a restart, so it is rarer than it deserves.
WEIGHTS: Final[dict[str, float]] = (
    {"produce": 12.0, "commit": 3, "expire_source": 3, "cut_source": 2.5, "recreate": 3, "delete_source": 1}
    | {"grow": 1, "configure": 2, "appear": 0.7}
    | {"expire_target": 3, "cut_target": 2, "cut_journal": 0.7, "delete_journal": 1, "delete_target": 2}
    | {"stranger_writes": 2.5, "stranger_topic": 1.5, "clash": 0.7}
    | {"run": 12, "live": 5, "settle": 3, "kill": 1, "end": 1, "second": 1}
    | {"pause": 1, "resume": 1, "accept": 2.5, "failover": 1.5, "undo": 1.5, "verify": 1.5}
    | {"reload_bad": 0.7}
)
#: Sequences that are known to hurt: drawn whole, with others in between.
MOTIFS: Final = (
    "cut_source run produce produce run",
    "cut_source run expire_target produce run",
    "cut_target produce run",
    "cut_target run expire_target run",
    "live cut_target produce settle",
    "live cut_source produce settle produce settle",
    "stranger_writes run expire_target produce run",
    "stranger_writes produce run expire_source run",
    "failover stranger_writes expire_target undo produce run",
    "recreate produce run",
    "recreate run delete_target run",
    "live recreate settle delete_target settle",
    "delete_journal run",
    "produce expire_source run accept run",
    "produce expire_source run produce accept expire_target run",
    "second produce run",
    "commit expire_target commit run",
    "commit cut_target run commit",
    "commit pause produce commit failover",
    "live stranger_topic settle",
    "live reload_bad settle",
    "live produce kill produce run",
    "live configure settle",
    "live delete_source settle",
    "live clash appear grow settle",
    "live produce settle produce settle produce settle cut_journal failover produce",
    "live produce settle produce settle delete_journal failover produce settle",
    "cut_journal cut_source produce produce run",
    "cut_source produce produce expire_source run accept run",
    "stranger_writes run cut_target run",
    "recreate produce produce expire_source run accept run",
)
#: Where brokers' disks fail.
_ON_DISKS: Final[dict[str, float]] = {"damage_source": 4, "damage_target": 2, "leave_out": 2}
_ON_DISKS_MOTIFS: Final = (
    "damage_source run produce run",
    "damage_source run accept run verify",
    "damage_source leave_out produce run verify",
    "live produce damage_source settle produce settle",
    "damage_source live accept settle verify",
    "damage_target verify produce run verify",
    "run damage_target run failover",
    "configure produce run configure produce run verify",
)
#: Where somebody plays with the settings of copies.
_SET: Final[dict[str, float]] = {"set_target": 6}
_SET_MOTIFS: Final = (
    "live set_target produce settle produce settle",
    "run set_target produce run",
    "live set_target kill produce run",
    "set_target failover",
)
#: Where commands are asked for offsets, and killed in their midst.
_AROUND: Final[dict[str, float]] = {"failover_killed": 3, "translate": 6}
_AROUND_MOTIFS: Final = (
    "commit produce failover_killed",
    "live commit produce settle failover_killed",
    "failover_killed undo produce run translate",
    "stranger_topic translate",
    "run produce stranger_writes translate run translate",
    "run recreate produce translate",
    "run delete_target translate run translate",
    "cut_source produce translate run translate",
    "expire_target translate failover translate",
)
#: Where a stop stands whose evidence is gone by the time that a person decides.
_LATE_MOTIFS: Final = (
    "cut_source run produce produce expire_source accept run",
    "cut_source run produce produce expire_source expire_target accept produce run",
    "live cut_source settle produce produce expire_source accept settle",
    "stranger_writes run expire_target produce expire_source accept run",
    "cut_target expire_source run expire_target accept produce run",
)
#: Where a live mirror is frozen for so long that another one finishes its work.
_SUSPENDED: Final[dict[str, float]] = {"overtake": 8}
_SUSPENDED_MOTIFS: Final = (
    "live produce overtake produce run",
    "live commit produce overtake commit run",
    "live produce overtake expire_source expire_target run",
    "expire_source live produce overtake run",
)
#: Where an application sends the same record again and again, so that a batch is the source's at many offsets.
_ALIKE: Final[dict[str, float]] = {"alike": 6}
_ALIKE_MOTIFS: Final = (
    "live alike settle stranger_writes alike settle",
    "alike run stranger_writes alike run",
    "alike run cut_source alike alike run",
    "alike run cut_target alike run",
)
#: Where a command is suspended right before one of its orders: which command, and what somebody does meanwhile.
_ASLEEP: Final[dict[str, float]] = {"asleep": 10}
ASLEEP_KINDS: Final = tuple(
    f"{command}/{meanwhile}"
    for command in ("run", "failover", "undo", "accept", "adopt")
    for meanwhile in ("replaced", "recreated", "overtaken")
)
_ASLEEP_MOTIFS: Final = (
    "asleep run",
    "configure asleep run",
    "grow configure asleep run",
    "commit produce asleep produce run",
    "delete_source asleep run",
    "cut_source run produce asleep run",
    "stranger_topic asleep run",
    "commit failover asleep run",
    "expire_source configure asleep produce run",
)
#: What restarts a broker, for whoever shares the clusters.
DISTURBING: Final = frozenset({"cut_source", "cut_target", "cut_journal"})
#: After which more records may hide what happened.
LIFTING: Final = frozenset({"cut_source", "cut_target", "recreate", "expire_target", "stranger_writes", "undo"})
#: Names of topics.
LETTERS: Final = "abcdefgh"
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
    "segments": {"segment.bytes": "1048576", "segment.ms": "100"},
}
#: What somebody might set on a copy, by name.
COPY_CONFIGS: Final[dict[str, dict[str, str]]] = {
    "stamps": {"message.timestamp.type": "LogAppendTime"},
    "gzip": {"compression.type": "gzip"},
    "small": {"max.message.bytes": "300"},
}
_USUAL: Final = ("default", "forever", "week", "compact")


@dataclass(frozen=True, slots=True)
class Repertoire:
    """What schedules are drawn from.

    weights: how often each operation is.
    motifs: what is drawn whole.
    configs: what topics are set to.
    created: what the first topics are created with.
    """

    weights: dict[str, float]
    motifs: tuple[str, ...]
    configs: tuple[str, ...] = _USUAL
    created: tuple[str, ...] = ("default", "forever", "forever", "compact")


def _besides(weights: dict[str, float], motifs: tuple[str, ...], configs: tuple[str, ...] = _USUAL) -> Repertoire:
    """Return the usual operations with some more, whose motifs are drawn most of the time."""
    return Repertoire(WEIGHTS | weights, MOTIFS[::4] + motifs * 3, configs)


#: By name. A seed means another schedule in each, so that one can be added to without a change to the others.
REPERTOIRES: Final[dict[str, Repertoire]] = {
    "clusters": Repertoire(WEIGHTS, MOTIFS, (*_USUAL, "short", "append")),
    "disks": _besides(_ON_DISKS, _ON_DISKS_MOTIFS, tuple(TOPIC_CONFIGS)),
    "segments": Repertoire(WEIGHTS | _ON_DISKS, _ON_DISKS_MOTIFS, created=("segments",)),
    "settings": _besides(_SET, _SET_MOTIFS),
    "around": _besides(_AROUND, _AROUND_MOTIFS),
    "late": _besides({}, _LATE_MOTIFS),
    "suspended": _besides(_SUSPENDED, _SUSPENDED_MOTIFS),
    "alike": _besides(_ALIKE, _ALIKE_MOTIFS),
    "asleep": _besides(_ASLEEP, _ASLEEP_MOTIFS, (*_USUAL, "short")),
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
        return f"{self.name}({', '.join([LETTERS[self.topic], *rest])})"

    @classmethod
    def read(cls, text: str) -> Op:
        """Read what `str` writes; a name alone is of the first topic."""
        name, _, rest = text.removesuffix(")").partition("(")
        topic, *fields = rest.split(", ") if rest else ["a"]
        given = dict(field.split("=") for field in fields)
        numbers = {key: int(given.get(key, 0)) for key in ("partition", "amount")}
        return cls(name, LETTERS.index(topic), kind=given.get("kind", ""), **numbers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A flow's settings, the topics that there are at first, and what happens then.

    lasts: tasks live longer than the schedule, so that what they do not notice by themselves stays unnoticed.
    created: the kinds of settings (`TOPIC_CONFIGS`) of the source's first topics.
    partitions: how many each of these has.
    """

    operations: tuple[Op, ...]
    seed: int = 0
    repertoire: str = "clusters"
    translates: bool = False
    deletes: bool = False
    continues: bool = False
    tasks: int = 1
    lasts: bool = False
    created: tuple[str, ...] = ("forever",)
    partitions: tuple[int, ...] = (1,)

    @property
    def disturbs(self) -> bool:
        """Whether it restarts or hangs brokers."""
        return any(op.name in DISTURBING for op in self.operations)

    def __str__(self) -> str:
        traits = [name for name in ("translates", "deletes", "continues", "lasts") if getattr(self, name)]
        topics = ", ".join(f"{kind} x{count}" for kind, count in zip(self.created, self.partitions, strict=True))
        where = f" of {self.repertoire}" if self.repertoire != "clusters" else ""
        return f"seed {self.seed}{where} [{topics}{'; ' if traits else ''}{', '.join(traits)}]"


def written(text: str, **flow: Any) -> Schedule:
    """Return a schedule of operations that are written down (`Op.read`), on a flow with these traits."""
    return Schedule(operations=tuple(map(Op.read, text.split("; "))), **flow)


def schedule(seed: int, repertoire: str = "clusters") -> Schedule:
    """Return the schedule of a seed."""
    chance, drawn = Random(seed), REPERTOIRES[repertoire]
    topics = chance.choice((1, 1, 2))
    created = tuple(chance.choice(drawn.created) for _ in range(topics))
    partitions = tuple(chance.choice((1, 1, 2)) for _ in range(topics))
    likely = {"translates": 0.25, "deletes": 0.25, "continues": 0.15, "lasts": 0.2}
    traits: dict[str, Any] = {name: chance.random() < likelihood for name, likelihood in likely.items()}
    traits |= {"created": created, "partitions": partitions, "tasks": chance.choice((1, 2))}
    operations = [_produced(chance, topics) for _ in range(chance.randrange(1, 4))]
    if chance.random() < 0.15:
        operations.insert(0, _drawn(chance, topics, "stranger_topic", drawn.configs))
    operations += [_drawn(chance, topics, "commit", drawn.configs)] * (chance.random() < 0.5)
    operations.append(Op("live" if chance.random() < 0.3 else "run"))
    names, weights = [*drawn.weights], [*drawn.weights.values()]
    for _ in range(chance.choice((1, 1, 2))):
        target = chance.randrange(topics)
        for name in chance.choice(drawn.motifs).split():
            operations.append(replace(_drawn(chance, topics, name, drawn.configs), topic=target))
            if chance.random() < 0.15:
                operations.append(_drawn(chance, topics, chance.choices(names, weights)[0], drawn.configs))
    for name in chance.choices(names, weights, k=chance.randrange(4)):
        operations.append(_drawn(chance, topics, name, drawn.configs))
        if name in LIFTING and chance.random() < 0.5:
            operations.append(_produced(chance, topics))
    operations += [Op("run"), Op("verify")]
    return Schedule(operations=(*operations,), seed=seed, repertoire=repertoire, **traits)


def _produced(chance: Random, topics: int) -> Op:
    kind = chance.choice((*KINDS, "plain"))
    return Op("produce", chance.randrange(topics), chance.randrange(2), chance.randrange(1, 30), kind)


def _drawn(chance: Random, topics: int, name: str, configs: Sequence[str]) -> Op:
    if name == "produce":
        return _produced(chance, topics)
    kind = ""
    if name in {"recreate", "configure"}:
        kind = chance.choice(configs)
    if name == "set_target":
        kind = chance.choice(tuple(COPY_CONFIGS))
    if name == "asleep":
        kind = chance.choice(ASLEEP_KINDS)
    # a share, in percent, wherever an amount is one of what is there
    return Op(name, chance.randrange(topics), chance.randrange(2), chance.choice((0, 25, 50, 75, 90, 100)), kind)
