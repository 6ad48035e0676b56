"""The states of a mirrored partition, as `mirror status` prints them and docs/states.md lists them, and what resolves
each.

The advice of a stop is made of `Remedy` members alone. So there is one list of all that a person may be advised to do,
and `tests/contract/test_remedies.py` does each of these on a running mirror.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """Where one partition stands. A *stop* needs a person; everything else heals by itself."""

    STARTING = "STARTING"
    PADDING = "PADDING"
    MIRRORING = "MIRRORING"
    CAUGHT_UP = "CAUGHT_UP"
    PAUSED = "PAUSED"
    UNAVAILABLE = "UNAVAILABLE"

    TRUNCATED = "TRUNCATED"
    RECREATED = "RECREATED"
    RETENTION_GAP = "RETENTION_GAP"
    CORRUPT = "CORRUPT"
    REFUSED = "REFUSED"
    DIVERGED = "DIVERGED"
    FENCED = "FENCED"
    UNAUTHORIZED = "UNAUTHORIZED"
    TARGET_LOST = "TARGET_LOST"

    @property
    def is_stop(self) -> bool:
        """True for the states that the mirror does not leave on its own."""
        return self in _STOPS

    @property
    def is_well(self) -> bool:
        """True for the states in which a task copies, or has all there is."""
        return self in (State.MIRRORING, State.CAUGHT_UP)


_STOPS = frozenset(
    {
        State.TRUNCATED,
        State.RECREATED,
        State.RETENTION_GAP,
        State.CORRUPT,
        State.REFUSED,
        State.DIVERGED,
        State.FENCED,
        State.UNAUTHORIZED,
        State.TARGET_LOST,
    }
)


class Remedy(Enum):
    """What a person does so that a partition goes on. A running mirror goes on by itself then.

    `{topic}` and `{partition}` are the source's, `{target_topic}` is the copy; `{source}` and `{target}` are bootstrap
    servers; `{damaged}` is the topic on that `{side}` whose log cannot be read. Of a re-keyed topic, `{progress}` is
    the flow's own topic for it, `{written_to}` what its records go to, and `{dead_letter}` its dead-letter topic.
    CONFIG stands for the flow's configuration file, PRINCIPAL for the mirror's name on a cluster.
    """

    ACCEPT_LOSS = "Run `mirror accept CONFIG {topic} --partition {partition}` to go on behind them"
    CONTINUE = (
        "Where the source deletes again and again what it had for a moment, as a Streams application does in its"
        " repartition topics, it stops again: set topics.on_data_loss to continue, or add {topic} to topics.exclude,"
        " and send the mirror SIGHUP"
    )
    ACCEPT_DAMAGE = "Run `mirror accept CONFIG {topic} --partition {partition}` to leave it out"
    ACCEPT_COPY = (
        "If the copy is known to be whole, run `mirror accept CONFIG {topic} --partition {partition} --unconfirmed`"
    )
    ACCEPT_RESTORED = (
        "Where the log that lost records was restored, run `mirror accept CONFIG {topic} --partition {partition}`,"
        " which compares both logs, and accepts as lost what the target still lacks"
    )
    BEGIN_ANEW = (
        "To begin anew with what the source has now: kafka-topics.sh --bootstrap-server {target} --delete --topic"
        " {target_topic}"
    )
    EXCLUDE = "To keep the copy as it is, add {topic} to topics.exclude and send the mirror SIGHUP"
    RENAME = (
        "To keep the copy and to mirror the topic into another one, name that in topics.naming.rename and send the"
        " mirror SIGHUP"
    )
    ADOPT = "Where the new topic holds what the copy has, run `mirror adopt CONFIG {topic}`, which compares them"
    SOUND_LEADER = "Move the leader to a replica whose copy is sound"
    INSPECT = "To look at it: `mirror inspect {damaged}:{partition} --config CONFIG --side {side}{begin}`"
    END_WRITER = (
        "Another mirror of this flow runs, or a producer writes to the target topic: end it, and where it was a"
        " producer, begin anew: kafka-topics.sh --bootstrap-server {target} --delete --topic {target_topic}"
    )
    RAISE_SIZE = (
        "Raise the limit on the source, from where the mirror takes it, or, where sync.configs leaves it alone, on"
        " {target_topic} at {target}: kafka-configs.sh --bootstrap-server {source}"
        " --alter --entity-type topics --entity-name {topic} --add-config max.message.bytes={bytes}"
    )
    RAISE_REQUEST = (
        "Raise socket.request.max.bytes of the brokers at {target}, and what a proxy before them lets through, to more"
        " than the record has, and restart them"
    )
    RAISE_MEMORY = (
        "Raise limits.memory_mb and send the mirror SIGHUP: a task opens a record of up to a third of its share of that"
    )
    RAISE_MEMORY_ANEW = (
        "Raise limits.memory_mb, and start the mirror again: a task opens a record of up to a third of its share of"
        " that"
    )
    FIT_TARGET = (
        "Compare the two topics' configurations, and change {target_topic} so that it takes the batch:"
        " kafka-configs.sh --bootstrap-server {target} --describe --all --entity-type topics --entity-name"
        " {target_topic}"
    )
    OTHER_FLOW = (
        "Add {topic} to topics.exclude, send the mirror SIGHUP, delete the target topic {target_topic}, and mirror the"
        " topic by another flow with topics.offsets: translate"
    )
    AS_BEGUN = (
        "Set topics.offsets to {offsets}, as the copy was begun, and start the mirror again; another copy, by another"
        " flow, may have other offsets"
    )
    ALLOW_DELETION = (
        "Add cleanup.policy, retention.ms and retention.bytes to sync.configs_exclude and send SIGHUP, then"
        " run kafka-configs.sh --bootstrap-server {target} --alter --entity-type topics --entity-name {target_topic}"
        " --add-config cleanup.policy=[compact,delete],retention.ms=-1,retention.bytes=-1."
        " When the partition is MIRRORING, take them out again"
    )
    TAKE_KEYLESS = (
        "Add cleanup.policy, retention.ms and retention.bytes to sync.configs_exclude and send SIGHUP, then"
        " run kafka-configs.sh --bootstrap-server {target} --alter --entity-type topics --entity-name {target_topic}"
        " --add-config cleanup.policy=delete,retention.ms=-1,retention.bytes=-1."
        " When the partition is MIRRORING, take them out again"
    )
    KEEP_TIMES = (
        "Let the copy keep the times that records have: kafka-configs.sh --bootstrap-server {target} --alter"
        " --entity-type topics --entity-name {target_topic} --add-config message.timestamp.type=CreateTime"
    )
    KEEP_REPEATED = (
        "Let the copy keep what the source keeps: kafka-configs.sh --bootstrap-server {target} --alter --entity-type"
        " topics --entity-name {target_topic} --add-config cleanup.policy=delete,retention.ms=-1,retention.bytes=-1."
        " mirror verify names what was removed until then; it comes back only where the copy starts over"
    )
    KEEP_LETTER_TIMES = (
        "Let the dead-letter topic keep the times that records have: kafka-configs.sh --bootstrap-server {target}"
        " --alter --entity-type topics --entity-name {dead_letter} --add-config message.timestamp.type=CreateTime"
    )
    UPGRADE = "This release cannot read the batch format. Upgrade the mirror"
    SEE_BROKER = "See the log of the target's broker, which answers each try with an error"
    GRANT = "{grant}"
    MEND_LOGIN = (
        "Fix the credentials. The mirror retries by itself; restart it only if you changed its configuration file"
    )
    REKEY_BEHIND = "Set topics.on_data_loss: continue, and start the mirror again, to go on behind them"
    REKEY_ANEW = (
        "To begin anew with what the source has now, delete {target_topic} and {progress}, in one command:"
        " kafka-topics.sh --bootstrap-server {target} --delete --topic {target_topic},{progress}"
    )
    KEEP_REKEYED = (
        "To keep what was re-keyed and to re-key the topic into another one, name that in topics.naming.rename, and"
        " start the mirror again"
    )
    CHANGE_RULE = (
        "Change the rule of {topic} in topics.rules, or its on_bad_record, or mend what it is about, and start the"
        " mirror again"
    )
    RAISE_REKEYED = "Raise max.message.bytes of {written_to}, and start the mirror again"
    EXCLUDE_REKEYED = "To keep the copy as it is, add {topic} to topics.exclude, and start the mirror again"
    GRANT_REKEYED = (
        "Grant what is missing: READ and DESCRIBE_CONFIGS on {topic} at {source}, these and WRITE on {written_to} and"
        " {progress} at {target}, and there: kafka-acls.sh --bootstrap-server {target} --add --allow-principal"
        " User:PRINCIPAL --operation Write --operation Describe --transactional-id {progress}."
        " --resource-pattern-type prefixed"
    )
    END_REKEYER = "Where another mirror of this flow runs, end it"
    RESUME = "`mirror resume CONFIG {topic}` lets it go on"

    def text(self, values: Mapping[str, object] = MappingProxyType({})) -> str:
        """The text, with the values that are known; the name of another one in capitals is left to the reader."""
        return str(self.value).format_map(_Known(values))


class _Known(dict[str, object]):
    def __missing__(self, name: str) -> str:
        return name.upper()


#: What may be advised in each state. Where there is nothing, there is nothing to do: it passes by itself.
RESOLVED_BY: Final[Mapping[State, tuple[Remedy, ...]]] = {
    State.STARTING: (),
    State.PADDING: (),
    State.MIRRORING: (),
    State.CAUGHT_UP: (),
    State.PAUSED: (Remedy.RESUME,),
    State.UNAVAILABLE: (),
    State.TRUNCATED: (Remedy.EXCLUDE, Remedy.ACCEPT_RESTORED, Remedy.BEGIN_ANEW),
    State.RECREATED: (Remedy.EXCLUDE, Remedy.RENAME, Remedy.ADOPT, Remedy.BEGIN_ANEW),
    State.RETENTION_GAP: (Remedy.ACCEPT_LOSS, Remedy.CONTINUE),
    State.CORRUPT: (Remedy.SOUND_LEADER, Remedy.ACCEPT_DAMAGE, Remedy.BEGIN_ANEW, Remedy.INSPECT),
    State.REFUSED: (
        Remedy.RAISE_SIZE,
        Remedy.RAISE_REQUEST,
        Remedy.RAISE_MEMORY,
        Remedy.FIT_TARGET,
        Remedy.ACCEPT_DAMAGE,
        Remedy.OTHER_FLOW,
        Remedy.AS_BEGUN,
        Remedy.ALLOW_DELETION,
        Remedy.TAKE_KEYLESS,
        Remedy.KEEP_TIMES,
        Remedy.UPGRADE,
        Remedy.SEE_BROKER,
    ),
    State.DIVERGED: (Remedy.ACCEPT_COPY, Remedy.RENAME, Remedy.BEGIN_ANEW),
    State.FENCED: (Remedy.END_WRITER,),
    State.UNAUTHORIZED: (Remedy.GRANT, Remedy.MEND_LOGIN, Remedy.OTHER_FLOW),
    State.TARGET_LOST: (Remedy.ACCEPT_RESTORED, Remedy.ACCEPT_LOSS),
}
#: The same of re-keyed topics. All of it is shown, but for what a stop has chosen of it.
REKEYED_BY: Final[Mapping[State, tuple[Remedy, ...]]] = {
    State.TRUNCATED: (Remedy.KEEP_REKEYED, Remedy.REKEY_ANEW),
    State.RECREATED: (Remedy.EXCLUDE_REKEYED, Remedy.KEEP_REKEYED, Remedy.REKEY_ANEW),
    State.TARGET_LOST: (Remedy.KEEP_REKEYED, Remedy.REKEY_ANEW),
    State.DIVERGED: (Remedy.KEEP_REKEYED, Remedy.REKEY_ANEW),
    State.RETENTION_GAP: (Remedy.REKEY_BEHIND,),
    State.CORRUPT: (Remedy.SOUND_LEADER, Remedy.INSPECT),
    State.REFUSED: (
        Remedy.CHANGE_RULE,
        Remedy.RAISE_REKEYED,
        Remedy.RAISE_MEMORY_ANEW,
        Remedy.KEEP_TIMES,
        Remedy.KEEP_LETTER_TIMES,
        Remedy.KEEP_REPEATED,
    ),
    State.FENCED: (Remedy.END_REKEYER, Remedy.KEEP_REKEYED, Remedy.REKEY_ANEW),
    State.UNAUTHORIZED: (Remedy.GRANT_REKEYED, Remedy.MEND_LOGIN),
}
