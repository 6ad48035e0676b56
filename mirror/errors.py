"""Every error that `mirror` raises on purpose, and the exit code it ends the program with.

    MirrorError                     1  a bug, unless a subclass says otherwise
    ├── ConfigError                 2  usage or configuration
    ├── PreflightError              3  the plan cannot be carried out safely
    ├── PartitionStop               4  data at risk: one partition stopped in a named state
    ├── ClusterError                6  a cluster could not be used
    │   ├── ClusterUnreachable      6  no broker answered
    │   │   ├── Throttled           6  a quota of its brokers is used up for now
    │   │   └── Suspended           6  this process did not run for a while, and nothing was done
    │   ├── AccessDenied            6  a broker answered, and refused us
    │   │   └── NotAuthenticated    6  because we could not prove who we are
    │   ├── Fenced                  6  another writer took over the transactional id of this one
    │   ├── FlowLost                6  another mirror took the flow over, or it was failed over
    │   └── BrokerError             6  a broker answered with an error code that a retry did not cure
    ├── WireError                      one connection; cured by a new connection, never seen by the user
    │   ├── ConnectionLost             closed, reset, timed out
    │   │   ├── ClosedByPeer           closed or reset by the other side
    │   │   └── TlsRefused             one of the two will not speak TLS with the other
    │   ├── FrameTooLarge              a length beyond the limit: nothing was allocated
    │   ├── MalformedFrame             bytes that do not follow the protocol's schema
    │   └── UnsupportedVersion         no common version of an API
    ├── EngineUnavailable           6  Spark does not start; nothing was made on the target
    ├── EngineLost                  1  Spark's JVM died under us; a restart goes on where the target's log ends
    ├── MalformedBatch                 bytes that are not a record batch; becomes state CORRUPT
    ├── BadRecords                     a payload that does not decompress or decode; becomes state REFUSED
    │   ├── TooManyBytes               it decompresses to more than the cap
    │   └── RecordTooLarge             one record alone is more than the target takes
    ├── EmbeddedError               1  an embedded broker could not be fetched, started or stopped
    └── BenchError                  1  something that was to be measured did not run as it should
        └── UnequalCopy             5  it did, and its copy is not equal to the source

Codes 5 (differences found) and 7 (equal as far as compared, but not whole) are results of `mirror verify` (7 of
`mirror failover`, too), and 10
(there is something to do) one of `mirror plan` and of `mirror restore --dry-run`; none is an error. A message names
the topic, the partition, the offset where they are known, and what to do next.
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar, Self

from mirror.states import RESOLVED_BY, Remedy, State


class ExitCode(IntEnum):
    """How the program ends. A signal that cuts it short gives 128 plus the signal's number instead."""

    DONE = 0
    """The command did what it was asked for. `mirror plan`: nothing to do. `mirror verify`: equal and whole. `mirror
    failover`: everything got over.
    """
    BUG = 1
    """An unexpected error, or Spark's JVM was lost."""
    USAGE = 2
    """The command line or the configuration is wrong."""
    PREFLIGHT = 3
    """Preflight refuses to start. A live mirror that is ended gives this code if only topics are left out that
    preflight refuses.
    """
    DATA_AT_RISK = 4
    """Data is at risk: a partition is stopped, a log is damaged, or a failover or restore is incomplete. A live mirror
    that is ended gives this code if any partition is stopped then.
    """
    DIFFERENT = 5
    """Differences were found."""
    CLUSTER = 6
    """A cluster is unreachable or denies access, or a bounded copy made no progress or left consumer groups
    behind. A live mirror that is ended gives this code if every stopped partition is UNAUTHORIZED.
    """
    NOT_WHOLE = 7
    """Equal as far as compared, but not whole. `mirror failover`: only losses that were accepted before are missing."""
    CHANGES = 10
    """`mirror plan` found changes to make, or `mirror restore --dry-run` has printed its plan."""


class MirrorError(Exception):
    """Root of the tree above."""

    exit_code: ClassVar[ExitCode] = ExitCode.BUG


class ConfigError(MirrorError):
    """The configuration file or the command line is wrong; the message lists every problem with its line."""

    exit_code: ClassVar[ExitCode] = ExitCode.USAGE


class PreflightError(MirrorError):
    """Something must be changed on a cluster, or in the plan, before it is safe to start."""

    exit_code: ClassVar[ExitCode] = ExitCode.PREFLIGHT


class FlowRuns(PreflightError):
    """Another mirror runs the flow."""


class PartitionStop(MirrorError):
    """One partition stopped in a named state; the others go on.

    `offset` is the source offset at which it stopped, or -1 where none is known. `remedies` are those of its state that
    apply. An `advice` that was given before is kept as it is.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.DATA_AT_RISK

    def __init__(
        self,
        state: State,
        topic: str,
        partition: int,
        offset: int,
        detail: str,
        *remedies: Remedy,
        advice: str | None = None,
    ) -> None:
        assert state.is_stop, state
        assert bool(remedies) != (advice is not None), (state, remedies, advice)
        assert {*remedies} <= {*RESOLVED_BY[state]}, (state, remedies)
        self.state, self.topic, self.partition, self.offset = state, topic, partition, offset
        self.detail, self.remedies = detail, remedies
        self._given_advice = advice
        self._values: dict[str, object] = {"topic": topic, "partition": partition}
        super().__init__(detail)

    @property
    def advice(self) -> str:
        """What to do."""
        if self._given_advice is not None:
            return self._given_advice
        return ". ".join(remedy.text(self._values) for remedy in self.remedies)

    def knowing(self, **values: object) -> Self:
        """The same; its advice has these values as well."""
        self._values |= values
        return self

    def knows(self, name: str) -> bool:
        """Whether its advice has a value by this name."""
        return name in self._values

    @property
    def problem(self) -> str:
        """What is wrong, and where."""
        return f"{self.state}: {self.topic}-{self.partition} at offset {self.offset}: {self.detail}"

    def __str__(self) -> str:
        return f"{self.problem}. {self.advice}"


class ClusterError(MirrorError):
    """A cluster cannot be used."""

    exit_code: ClassVar[ExitCode] = ExitCode.CLUSTER


class ClusterUnreachable(ClusterError):
    """No broker of the cluster answered before the deadline."""


class Throttled(ClusterUnreachable):
    """A quota of the brokers is used up: they take this later."""


class Suspended(ClusterUnreachable):
    """This process did not run for a while, in which others may have acted: nothing was done, and who looks again may
    go on.
    """


class OpenTransaction(ClusterUnreachable):
    """A leader that has all of a log shows readers of committed records less of it than `cluster` has shown before, up
    to offset `stable`: a transaction is open there that had ended.
    """

    def __init__(self, message: str, cluster: str, stable: int) -> None:
        self.cluster, self.stable = cluster, stable
        super().__init__(message)


class AccessDenied(ClusterError):
    """A broker refused the principal; the message names the operation and the resource.

    `right` is what an ACL must allow, by Kafka's name for the operation ("READ"), where that is known.
    """

    def __init__(self, message: str, right: str = "") -> None:
        self.right = right
        super().__init__(message)


class NotAuthenticated(AccessDenied):
    """A broker does not take us for who we say we are; the message names the mechanism and what to check."""


class Fenced(ClusterError):
    """Another writer began with the same `transactional_id`, and nothing more of this one is taken."""

    def __init__(self, message: str, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        super().__init__(message)


class FlowLost(ClusterError):
    """Another mirror took the flow over, or it was failed over."""


class BrokerError(ClusterError):
    """A broker answered with an error code that retrying did not cure, or cannot cure."""

    def __init__(self, code: int, name: str, doing: str) -> None:
        self.code, self.name, self.doing = code, name, doing
        super().__init__(f"{doing}: the broker answered {code} {name}")


class WireError(MirrorError):
    """One connection failed; the cluster layer opens another."""


class ConnectionLost(WireError):
    """Closed by the peer, reset, refused, or silent past its deadline."""


class ClosedByPeer(ConnectionLost):
    """The peer closed or reset it."""


class TlsRefused(ConnectionLost):
    """No TLS with this peer, for its certificate or ours: asking it again at once is of no use."""


class OtherCluster(ConnectionLost):
    """The peer is a broker of another cluster than the one that is spoken to."""


class FrameTooLarge(WireError):
    """A frame announced more bytes than the limit, or a negative number; `size` is what it announced."""

    def __init__(self, size: int, limit: int) -> None:
        self.size = size
        begin = (size & 0xFFFFFFFF).to_bytes(4).decode("latin-1")
        if begin.isascii() and begin.isprintable():
            kind = ", as an HTTP server's" if begin in ("HTTP", "<!DO", "<htm", "<HTM") else ""
            super().__init__(f"no Kafka broker listens there: its answer begins with {begin!r}{kind}")
        else:
            super().__init__(f"the peer announced a frame of {size} bytes; the limit is {limit}")


class MalformedFrame(WireError):
    """The bytes of an answer do not follow the schema of its API and version."""


class UnsupportedVersion(WireError):
    """Client and broker share no version of an API."""


class MalformedBatch(MirrorError):
    """Bytes that cannot be a record batch: `position` is where in the record set, `offset` the batch's base offset
    or -1.
    """

    def __init__(self, detail: str, position: int, offset: int = -1) -> None:
        self.detail, self.position, self.offset = detail, position, offset
        super().__init__(f"{detail} (byte {position} of the record set, base offset {offset})")


class BadRecords(MirrorError):
    """A payload that is not what its header says, though its CRC holds: `offset` is the batch's base offset or -1."""

    def __init__(self, detail: str, offset: int = -1) -> None:
        self.detail, self.offset = detail, offset
        super().__init__(detail if offset < 0 else f"{detail} (base offset {offset})")

    def at(self, offset: int) -> Self:
        """The same, for the batch at `offset`."""
        return type(self)(self.detail, offset)


class TooManyBytes(BadRecords):
    """A payload that decompresses to more than the cap; it was given up there."""


class RecordTooLarge(BadRecords):
    """A record that makes a batch larger than the target takes, even alone; `offset` is its own."""


class EngineUnavailable(MirrorError):
    """Spark does not start: its master is away, takes nobody, or its JVM ends."""

    exit_code: ClassVar[ExitCode] = ExitCode.CLUSTER


class EngineLost(MirrorError):
    """Spark is gone while the driver lives; the next start goes on from the target's log."""


class EmbeddedError(MirrorError):
    """An embedded broker could not be fetched, started or stopped; the message names its log."""


class BenchError(MirrorError):
    """Something that was to be measured did not run as it should; the message ends with what it said."""


class UnequalCopy(BenchError):
    """A copy was measured and is not equal to its source: its figures count for nothing."""

    exit_code: ClassVar[ExitCode] = ExitCode.DIFFERENT
