"""What the target's configs mean for one topic pair: the rules the classifier follows, and what preflight has to say.

Config values are the strings of DescribeConfigs. For a key that a broker does not know, Kafka's behaviour before the
key existed holds. Each finding says what to change; *refuse* means that copying would fail or lose data, *advise* that
it works and costs something the user should know about.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal

from mirror.kafka.topic_configs import MAX_REQUEST
from mirror.policy.remedies import Fix
from mirror.policy.selection import TopicPair

Offsets = Literal["preserve", "translate"]

NO_LIMIT = 2**63 - 1
#: By which a broker refuses what is later or earlier than its own clock, in ms.
AFTER_MAX, BEFORE_MAX = "message.timestamp.after.max.ms", "message.timestamp.before.max.ms"
MAX_BYTES = "max.message.bytes"
CODEC_IDS: Mapping[str, int] = {"uncompressed": 0, "none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

#: Bytes of a Produce request with one batch besides that batch: a topic's name has up to 249, a client id some dozens.
AROUND_A_BATCH = 1024
_DEFAULT_MAX_MESSAGE = 1_048_588
_DEFAULT_SEGMENT = 1 << 30
_DEFAULT_RETENTION_MS = 604_800_000
_DEFAULT_TOMBSTONES_MS = 86_400_000
NEEDS_ALTER = "needs ALTER on the target cluster (CLUSTER_ACTION where its brokers are older than 3.8)"
#: The first with batches of magic 2 (KIP-98).
_FIRST_WITH_BATCHES = (0, 11)


class Severity(StrEnum):
    """How much a finding matters."""

    REFUSE = "refuse"
    ADVISE = "advise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing preflight noticed. `topic` is the target's name, or empty when it concerns the whole flow. `text` says
    what to do as well: of a refusal, the `fix`.
    """

    severity: Severity
    topic: str
    text: str
    fix: Fix | None = None

    def __post_init__(self) -> None:
        assert (self.fix is not None) == (self.severity is Severity.REFUSE), self

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}" if self.topic else self.text


def refused(topic: str, what: str, fix: Fix, **values: object) -> Finding:
    """A finding that forbids to start."""
    return Finding(severity=Severity.REFUSE, topic=topic, text=fix.text(what, values), fix=fix)


def advised(topic: str, text: str) -> Finding:
    """A finding that something works, and costs something."""
    return Finding(severity=Severity.ADVISE, topic=topic, text=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Has what the classifier knows besides a batch's header; one value per partition pair."""

    offsets: Offsets = "preserve"
    target_append_time: bool = False  # records of the copy have the times of their append
    max_message_bytes: int = _DEFAULT_MAX_MESSAGE  # the largest batch that the target takes
    max_request_bytes: int = NO_LIMIT  # the largest request that its brokers take, where they show that
    #: The largest batch of a single record where others are to be smaller, since nobody says what the target takes.
    max_record_bytes: int = 0
    compacted: bool = False  # the target is
    deletes: bool = True  # records of the target may be deleted before their time
    continues_on_loss: bool = False  # goes on behind records that the source lost before they were mirrored
    skips_damage: bool = False  # leaves out batches that are damaged, or unreadable where they must be rewritten
    skips_too_large: bool = False  # leaves out records that are too large for the target
    size_follows: bool = False  # max.message.bytes of the target is set to what the source has
    codec: int | None = None  # the id that the mirror compresses to, None where batches keep theirs
    coalesce_bytes: int = 0  # batches in a row are joined up to that size, 0 for never
    timestamp_after_max_ms: int = NO_LIMIT  # how far ahead of the broker's clock a record may be
    timestamp_before_max_ms: int = NO_LIMIT  # how far behind it
    tombstones_ms: int | None = None  # how long a compacted source keeps tombstones, at least; None for another one
    mistimes: bool = False  # the target would give records times of its own, and nobody asked for these
    may_stamp: bool = False  # the copy may have such times from when its source's had (`topics.append_time` is target)
    follows_log_start: bool = False  # the copy's log start follows its source's

    @property
    def translates(self) -> bool:
        """Offsets move."""
        return self.offsets == "translate"

    @property
    def bound_by_requests(self) -> bool:
        """No setting of the topic lets its brokers take a larger batch."""
        return self.max_message_bytes + AROUND_A_BATCH >= self.max_request_bytes

    def below(self, cut_bytes: int) -> Rules:
        """The rules for a target that takes no batch of `cut_bytes`, and does not say what it takes: half of that is
        tried, and of one record, which cannot be halved, anything less.
        """
        return replace(
            self,
            max_message_bytes=min(self.max_message_bytes, cut_bytes // 2),
            max_record_bytes=min(self.max_message_bytes, cut_bytes - 1),
        )

    def may_take_more(self, source: Mapping[str, str], target: Mapping[str, str]) -> bool:
        """Whether the target takes larger batches than these rules know, by both topics' configs of now, or is about to
        be set so.
        """
        if _largest_batch(target) > self.max_message_bytes:
            return True
        limits = (_number(configs, MAX_BYTES, _DEFAULT_MAX_MESSAGE) for configs in (source, target))
        return self.size_follows and next(limits) > next(limits)

    @classmethod
    def from_configs(cls, target: Mapping[str, str]) -> Rules:
        """Return the rules that follow from the target topic's configs. `ValueError` for a value no Kafka has."""
        skew = _number(target, "message.timestamp.difference.max.ms", NO_LIMIT)  # one limit both ways, before Kafka 3.6
        compression = target.get("compression.type", "producer")
        if compression != "producer" and compression not in CODEC_IDS:
            raise ValueError(f"compression.type={compression} is not known to this version of mirror")
        return cls(
            target_append_time=is_stamped(target),
            max_message_bytes=_largest_batch(target),
            max_request_bytes=_number(target, MAX_REQUEST, NO_LIMIT),
            compacted="compact" in _policies(target),
            deletes="delete" in _policies(target),
            codec=codec_of(target),
            timestamp_after_max_ms=_number(target, AFTER_MAX, skew),
            timestamp_before_max_ms=_number(target, BEFORE_MAX, skew),
        )


def preflight(
    source: Mapping[str, str],
    target: Mapping[str, str],
    pair: TopicPair,
    target_partitions: int,
    target_replicas: int,
    *,
    offsets: Offsets = "preserve",
    may_fill: bool = True,
) -> tuple[Finding, ...]:
    """All there is to say about a pair whose target topic exists, from both topics' configs and the target's shape.
    `may_fill`: the mirror has the right to write control markers.
    """
    refuse = list(_refusals(source, target, pair, target_partitions))
    if offsets == "preserve" and not may_fill and "compact" in _policies(source):
        what = f"its source is compacted, and to fill the offsets that compaction took away {NEEDS_ALTER}"
        refuse.append(refused(pair.target, what, Fix.GRANT_MARKERS))
    advise = (*_advice(source, target, offsets), *_advice_on_replicas(target, target_replicas))
    return _findings(pair.target, refuse, advise)


def preflight_rekeyed(
    source: Mapping[str, str], target: Mapping[str, str], topic: str, target_replicas: int
) -> tuple[Finding, ...]:
    """The same about a topic of the target that gets records one by one: what becomes of batches does not matter."""
    advise = (
        *_advice_on_times(source, target),
        *_advice_on_retention(source, target),
        *_advice_on_replicas(target, target_replicas),
    )
    return _findings(topic, _refusals_of_any(source, target, topic), advise)


def _findings(topic: str, refuse: Iterable[Finding], advise: Iterable[str]) -> tuple[Finding, ...]:
    return (*refuse, *(advised(topic, text) for text in advise))


def _refusals(
    source: Mapping[str, str], target: Mapping[str, str], pair: TopicPair, partitions: int
) -> Iterator[Finding]:
    rules = Rules.from_configs(target)
    if partitions != pair.partitions:
        fix = Fix.ADD_PARTITIONS if partitions < pair.partitions else Fix.DELETE_OR_RENAME
        many = f"{partitions} partition{'' if partitions == 1 else 's'}"
        yield refused(pair.target, f"has {many} where {pair.source} has {pair.partitions}", fix)
    if rules.compacted and "compact" not in _policies(source):
        what = "is compacted and its source is not: records without a key would be refused, others lost"
        yield refused(pair.target, what, Fix.DELETE_POLICY)
    yield from _refusals_of_any(source, target, pair.target)


def _refusals_of_any(source: Mapping[str, str], target: Mapping[str, str], topic: str) -> Iterator[Finding]:
    rules = Rules.from_configs(target)
    if old := _old_format(target):
        what = f"stores the old format {old}, into which its brokers convert every batch"
        yield refused(topic, what, Fix.REMOVE_FORMAT)
    if not rules.target_append_time and rules.timestamp_before_max_ms < _kept_ms(source):
        limit = _time(rules.timestamp_before_max_ms)
        what = f"refuses records older than message.timestamp.before.max.ms, {limit}, which its source still keeps"
        yield refused(topic, what, Fix.TAKE_OLD, limit=NO_LIMIT)


def _advice(source: Mapping[str, str], target: Mapping[str, str], offsets: Offsets) -> Iterator[str]:
    rules = Rules.from_configs(target)
    if rules.codec is not None and rules.codec != codec_of(source):
        yield (
            f"has compression.type={target['compression.type']}: batches of another codec are recompressed, at a cost;"
            " compression.type=producer keeps them as they are"
        )
    largest = _largest_batch(source)
    if rules.max_message_bytes < largest:
        key = "segment.bytes" if _number(target, "segment.bytes", _DEFAULT_SEGMENT) < largest else MAX_BYTES
        more = f"set {key} to {largest} or more"
        if rules.bound_by_requests:
            more = f"set {MAX_REQUEST} of its brokers, {rules.max_request_bytes}, to {largest + AROUND_A_BATCH} or more"
        yield (
            f"takes batches of {rules.max_message_bytes} bytes, its source of {largest}: larger ones are split, at a"
            " cost, and a record that is larger alone stops its partition, or is left out where topics.on_too_large is"
            f" skip; {more}"
        )
    if old := _old_format(source):
        yield f"its source stores the old format {old}: every batch is rewritten"
    if is_stamped(source) and not rules.target_append_time:
        yield (
            "keeps its source's append times as the records' own, for which every batch is rewritten;"
            " topics.append_time: target costs nothing and shows when records were mirrored"
        )
    if "compact" in _policies(source):
        filled = (
            ", and each offset that compaction took away is filled with a control marker, which needs ALTER on the"
            " cluster (before Kafka 3.8 CLUSTER_ACTION); topics.offsets: translate fills nothing"
        )
        yield f"its source is compacted: batches with holes are rewritten{'' if offsets == 'translate' else filled}"
    yield from _advice_on_times(source, target)
    yield from _advice_on_retention(source, target)


def _advice_on_times(source: Mapping[str, str], target: Mapping[str, str]) -> Iterator[str]:
    rules = Rules.from_configs(target)
    if rules.target_append_time and is_stamped(source):
        yield (
            "stamps records itself, as its source does: the copy shows when its records were mirrored;"
            " message.timestamp.type=CreateTime, set while no mirror of the flow runs, keeps the source's append times"
            " from then on, at a cost"
        )
    elif rules.target_append_time:
        yield (
            "stamps records itself: the source's timestamps are lost where topics.append_time is target, and else"
            " nothing is written to it (REFUSED); message.timestamp.type=CreateTime keeps them"
        )
    if not rules.target_append_time and rules.timestamp_after_max_ms < NO_LIMIT:
        yield (
            f"refuses records more than {_time(rules.timestamp_after_max_ms)} ahead of its clock;"
            f" set message.timestamp.after.max.ms={NO_LIMIT}"
        )


def _advice_on_retention(source: Mapping[str, str], target: Mapping[str, str]) -> Iterator[str]:
    if "delete" in _policies(target):
        if _kept_ms(target) < _kept_ms(source):
            yield "deletes records that its source still keeps, old ones on arrival; set retention.ms as on the source"
        if _kept_bytes(target) < _kept_bytes(source):
            yield "keeps fewer bytes than its source, old records go on arrival; set retention.bytes as on the source"


def _advice_on_replicas(target: Mapping[str, str], replicas: int) -> Iterator[str]:
    """`replicas` -1: as many as the cluster gives. No refusal: brokers cap the setting at the replicas since Kafka 3.7
    (KAFKA-15583, `Partition.effectiveMinIsr`); older ones refuse every write, and the partition is UNAVAILABLE by
    their own word.
    """
    if 0 < replicas < (in_sync := _number(target, "min.insync.replicas", 1)):
        yield (
            f"needs {in_sync} in-sync replicas and has {replicas} in all: brokers older than 3.7 refuse every write,"
            " later ones count the replicas that there are; give it more replicas (a topic that is to be created, by"
            " topics.replication_factor; another one, by kafka-reassign-partitions.sh), or lower min.insync.replicas"
        )


def grows(configs: Mapping[str, str], topic: str, begin: int) -> str:
    """Return what to say of a copy that keeps what somebody deletes from its source, a topic without retention that
    begins at an offset; empty where nobody does, as far as that shows. Streams applications name and purge some so.
    """
    if min(_kept_ms(configs), _kept_bytes(configs)) < NO_LIMIT or is_compacted(configs):
        return ""
    if not begin and not topic.endswith("-repartition"):
        return ""
    return (
        f"grows for ever: its source has no retention and begins at offset {begin}, since records are deleted there by"
        " request (DeleteRecords, as a Streams application does of its repartition topics), and the copy keeps them;"
        " set sync.log_start to follow, and topics.on_data_loss to continue, since what is deleted before it is"
        " mirrored stops the copy each time (RETENTION_GAP); or exclude it where the application can make it anew"
    )


def shortened(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """What is to be said of a copy that gets other settings and with them deletes more than it did; empty where it does
    not: nobody else may hold what its source deleted.
    """
    kinds = (
        ("retention.ms", _kept_ms),
        ("retention.bytes", _kept_bytes),
        ("min.compaction.lag.ms" if is_compacted(before) else "", _uncompacted_ms),
    )
    less = [name for name, kept in kinds if kept(after) < kept(before)]
    if not less:
        return ""
    names = [*filter(None, less), *(["cleanup.policy"] if _policies(after) != _policies(before) else [])]
    kept = " and ".join(f"{name}={after.get(name)}" for name in names)
    what = f"gets {kept} as its source has, and deletes what that does not keep, also what its source has no more"
    return f"{what}; to keep it, have {' and '.join(names)} in sync.configs_exclude before the mirror runs"


def is_compacted(configs: Mapping[str, str]) -> bool:
    """Records may be deleted from between others."""
    return "compact" in _policies(configs)


def tombstones_kept_ms(configs: Mapping[str, str]) -> int | None:
    """How long a compacted topic keeps a tombstone, at least, for whoever reads behind it; None for another one."""
    if not is_compacted(configs):
        return None
    return _number(configs, "delete.retention.ms", _DEFAULT_TOMBSTONES_MS)


def codec_of(configs: Mapping[str, str]) -> int | None:
    """The one codec that batches get; None where they keep theirs."""
    return CODEC_IDS.get(configs.get("compression.type", "producer"))


def is_stamped(configs: Mapping[str, str]) -> bool:
    """Records get the time at which a broker took them."""
    return configs.get("message.timestamp.type") == "LogAppendTime"


def may_expire(configs: Mapping[str, str], age_ms: int) -> bool:
    """Whether retention may have deleted a record of that age: by its size a log may delete any."""
    return age_ms >= _kept_ms(configs) or _kept_bytes(configs) < NO_LIMIT


def _policies(configs: Mapping[str, str]) -> set[str]:
    return {policy.strip() for policy in configs.get("cleanup.policy", "delete").split(",")}


def _time(milliseconds: int) -> str:
    """As it is set, and in the largest unit that has at least one of it: 3600000 ms (1 h)."""
    units = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))
    duration = next((f" ({milliseconds / size:.3g} {name})" for size, name in units if milliseconds >= size), "")
    return f"{milliseconds} ms{duration}"


def _kept_ms(configs: Mapping[str, str]) -> int:
    """How long a record may live; unlimited where nothing is deleted by age."""
    kept = _number(configs, "retention.ms", _DEFAULT_RETENTION_MS)
    return NO_LIMIT if kept < 0 or "delete" not in _policies(configs) else kept


def _kept_bytes(configs: Mapping[str, str]) -> int:
    kept = _number(configs, "retention.bytes", -1)
    return NO_LIMIT if kept < 0 or "delete" not in _policies(configs) else kept


def _uncompacted_ms(configs: Mapping[str, str]) -> int:
    """How long a cleaner leaves a record that a later one of its key replaces."""
    return _number(configs, "min.compaction.lag.ms", 0) if is_compacted(configs) else NO_LIMIT


def _old_format(configs: Mapping[str, str]) -> str:
    """The version whose format before magic 2 is stored, as in 0.10.2-IV0; empty where none is set (Kafka 4 has no
    such key).
    """
    version = configs.get("message.format.version", "")
    numbers = tuple(int(part) for part in version.partition("-")[0].split(".")[:2]) if version else ()
    return version if () < numbers < _FIRST_WITH_BATCHES else ""


def _largest_batch(configs: Mapping[str, str]) -> int:
    """A batch must fit into a message and into a segment (Kafka `UnifiedLog.append`), and into a request."""
    message = _number(configs, MAX_BYTES, _DEFAULT_MAX_MESSAGE)
    request = _number(configs, MAX_REQUEST, NO_LIMIT) - AROUND_A_BATCH
    return min(message, _number(configs, "segment.bytes", _DEFAULT_SEGMENT), request)


def _number(configs: Mapping[str, str], key: str, default: int) -> int:
    text = configs.get(key)
    return default if text is None else int(text)
