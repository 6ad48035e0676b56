"""One transaction on a cluster (KIP-98): batches of several partitions that readers of committed data see together or
never.

    - Whoever begins last holds the transactional id: what earlier holders left is ended first, and whatever they still
      send is refused by the coordinator and by the leaders (`Fenced`).
    - A batch is sent under one sequence, with the same bytes, until it is acknowledged: the leader keeps one.
    - What was not acknowledged whole is not committed.
    - Nor is what a topic was given that was made anew since it joined: an append waits for a leader, by name.

Decision: the classic requests alone. A client names each partition to the coordinator before it sends data, and keeps
to Produce 11 and EndTxn 4: from the next versions on a broker takes it for one that leaves this to the broker (KIP-890,
Kafka `TransactionVersion`). Brokers of all releases speak these. What the newer protocol gives beyond that, an epoch
for each transaction, comes here from InitProducerId, with which each begins.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from mirror import clock
from mirror.errors import AccessDenied, ClusterUnreachable, ConnectionLost, Fenced, MalformedFrame, WireError
from mirror.kafka.cluster import AUTHORIZATION_ERRORS, CALL_TIMEOUT, Cluster, TopicPartition, refusal
from mirror.kafka.produce import ACK_TIMEOUT, Ack, ProduceRequest, read_produce
from mirror.kafka.protocol import (
    ADD_PARTITIONS_TO_TXN,
    DESCRIBE_TRANSACTIONS,
    END_TXN,
    FIND_COORDINATOR,
    INIT_PRODUCER_ID,
    PRODUCE,
    Api,
    Buffer,
)
from mirror.kafka.retry import Backoff
from mirror.records.header import ProducerState, RawBatch, restamp

#: Connections of their own: what waits for replicas must not hold up those who ask for offsets and leaders.
PURPOSE: Final = "transactions"
#: Seconds that a transaction may take to begin: a new cluster makes its topic of transactions first, and markers for
#: what an earlier holder left are written, by leaders that may have to be elected.
BEGIN_TIMEOUT: Final = 30.0
#: Larger requests are cut; a broker takes 100 MiB (`socket.request.max.bytes`).
REQUEST_BYTES: Final = 8 * 1024 * 1024
_PRODUCE: Final = replace(PRODUCE, newest=11)
#: What a transaction is made of, for `preload`.
APIS: Final = (_PRODUCE, FIND_COORDINATOR, INIT_PRODUCER_ID, ADD_PARTITIONS_TO_TXN, END_TXN)
_TRANSACTION_KEY: Final = 1
_MANY_COORDINATORS: Final = 4
#: Codes by which a coordinator or a leader says that somebody else has the transactional id now, or that it has ended
#: the transaction itself: producer epoch, transaction state, producer id mapping, fenced.
_FENCED: Final = frozenset({47, 48, 49, 90})
_INVALID_STATE: Final = 48
_TOPIC_DENIED: Final = 29
_ID_DENIED: Final = 53
_DUPLICATE: Final = 46
_NOT_ATTEMPTED: Final = 55
_CONCURRENT: Final = 51
_UNKNOWN_ID: Final = 105
_COMMITTING: Final = "PrepareCommit"

Parts = tuple[Buffer, ...]


class Transaction:
    """One transaction of one transactional id, made by `begin` or `following`; for one call at a time, and for
    use once.

    All calls raise Fenced, AccessDenied, ClusterUnreachable, and BrokerError for what no retry cures. Behind any error
    there is `abort`, or nothing: the next holder of the id, or the coordinator after `timeout_ms`, aborts what is left.
    """

    def __init__(self, coordinator: _Coordinator, timeout: float, stamp: ProducerState) -> None:
        self._coordinator, self._cluster, self._timeout = coordinator, coordinator.cluster, timeout
        self._first = stamp
        self._next: dict[TopicPartition, ProducerState] = {}
        self._sequences: dict[TopicPartition, ProducerState] = {}
        self._topic_ids: dict[str, UUID | None] = {}
        self._named = self._doubtful = self._over = False
        #: Where a leader gave records times of its own: the offset of the first batch of which it says so.
        self.stamped: dict[TopicPartition, int] = {}

    @classmethod
    async def begin(cls, cluster: Cluster, transactional_id: str, timeout_ms: int = 60_000) -> Transaction:
        """Take over the transactional id: a transaction that an earlier holder left open is aborted, and one whose end
        was decided is carried to that end, before this returns.

        After `timeout_ms` the coordinator aborts what has not ended (at most `transaction.max.timeout.ms`). So long,
        too, the other calls try again.
        """
        coordinator = _Coordinator(cluster, transactional_id)

        def build(version: int) -> Any:
            return INIT_PRODUCER_ID.request(version)(
                transactional_id=transactional_id, transaction_timeout=timedelta(milliseconds=timeout_ms)
            )

        answer = await coordinator.ask(INIT_PRODUCER_ID, build, _only_code, "InitProducerId", BEGIN_TIMEOUT)
        return cls(coordinator, timeout_ms / 1000, ProducerState(int(answer.producer_id), int(answer.producer_epoch)))

    def following(self) -> Transaction:
        """The next transaction of the same holder, behind one that has ended: it takes nothing over, and is refused
        (Fenced) where somebody has taken the transactional id over since.
        """
        assert self._over, f"{self} has not ended"
        following = Transaction(self._coordinator, self._timeout, self._first)
        following._sequences = self._sequences | self._next
        return following

    @property
    def producer_id(self) -> int:
        """What the coordinator gave out for the transactional id."""
        return self._first.producer_id

    @property
    def epoch(self) -> int:
        """That of this transaction alone."""
        return self._first.epoch

    def __str__(self) -> str:
        return f"{self._cluster}: transaction of {self._coordinator.transactional_id}"

    async def join(self, partitions: Iterable[TopicPartition]) -> None:
        """Name partitions to the coordinator, which is needed before data is sent there; those named before are left
        out.
        """
        assert not self._over, f"{self} has ended"
        asked = [partition for partition in dict.fromkeys(partitions) if partition not in self._next]
        if not asked:
            return
        topics: dict[str, list[int]] = {}
        for topic_partition in asked:
            topics.setdefault(topic_partition.topic, []).append(topic_partition.partition)

        def build(version: int) -> Any:
            named = ADD_PARTITIONS_TO_TXN.schema(version, "request").AddPartitionsToTxnTopic
            return ADD_PARTITIONS_TO_TXN.request(version)(
                v3_and_below_transactional_id=self._coordinator.transactional_id,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch,
                v3_and_below_topics=tuple(
                    named(name=name, partitions=tuple(numbers)) for name, numbers in topics.items()
                ),
            )

        self._named = True
        self._topic_ids = {name: self._cluster.topic_id(name) for name in topics} | self._topic_ids
        await self._coordinator.ask(ADD_PARTITIONS_TO_TXN, build, _codes_by_topic, "AddPartitionsToTxn", self._timeout)
        self._next |= {partition: self._sequences.get(partition, self._first) for partition in asked}

    async def append(self, batches: Mapping[TopicPartition, RawBatch]) -> dict[TopicPartition, int]:
        """Append one batch to each of several partitions that have joined, and wait for all in-sync replicas: the
        offset where each begins.

        A batch is of magic 2, without holes, with any codec, and from anywhere: its header is made anew, its records
        stay the bytes that they are. An offset is -1 where a leader says no more than that it has the batch already.
        """
        assert not self._over, f"{self} has ended"
        waiting: dict[TopicPartition, Parts] = {}
        for topic_partition, raw in batches.items():
            assert raw.header.magic == 2, f"{topic_partition}: a batch of magic {raw.header.magic}"
            assert not raw.header.is_control, f"{topic_partition}: a marker"
            waiting[topic_partition] = restamp(raw, self._next[topic_partition], transactional=True), raw.records
        self._doubtful, before = True, self._doubtful
        acks = await self._appended(waiting)
        self._doubtful = before
        for at, raw in batches.items():
            self._next[at] = self._next[at].after(raw.header.last_offset_delta)
            if acks[at].append_time_ms not in (-1, raw.header.max_timestamp):
                self.stamped.setdefault(at, acks[at].base_offset)
        return {partition: ack.base_offset for partition, ack in acks.items()}

    async def commit(self) -> None:
        """Have all of it seen. Returns once that is decided; leaders get their markers within moments.

        Raises ClusterUnreachable where there is no clear answer, where an append failed before, and where a topic was
        deleted meanwhile, since what it was given is gone, or in another topic. With no clear answer, and with
        Fenced behind one, it may have been committed: whoever begins next finds it decided either way.
        """
        if self._doubtful:
            raise ClusterUnreachable(f"{self}: not committed, since not all of it was acknowledged; abort it")
        if any(self._topic_ids.values()):
            await self._cluster.refresh(self._topic_ids, self._timeout)
        for name, joined in self._topic_ids.items():
            if joined is not None and self._cluster.topic_id(name) != joined:
                raise ClusterUnreachable(f"{self}: not committed, since topic {name} was deleted meanwhile; abort it")
        await self._end(committed=True)

    async def abort(self) -> None:
        """Have none of it seen. Raises ClusterUnreachable where there is no clear answer: then the coordinator aborts
        it when its time is up.

        Whoever goes on at once with the same transactional id need not: `begin` aborts, too. Behind an append that was
        not acknowledged it does so more thoroughly, since what is still on its way then has an epoch that is gone.
        """
        await self._end(committed=False)

    async def _end(self, *, committed: bool) -> None:
        assert not self._over, f"{self} has ended"
        if not self._named:  # a coordinator knows of no transaction without a partition, and refuses to end it
            self._over = True
            return

        def build(version: int) -> Any:
            return END_TXN.request(version)(
                transactional_id=self._coordinator.transactional_id,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                committed=committed,
            )

        def code(answer: Any) -> Iterator[tuple[Any, str]]:
            # no partition joined, for all we know: then there is nothing to abort
            if not (answer.error_code == _INVALID_STATE and not committed and not self._next):
                yield answer.error_code, ""

        doing = "EndTxn to commit" if committed else "EndTxn to abort"
        await self._coordinator.ask(END_TXN, build, code, doing, self._timeout)
        self._over = True

    async def _appended(self, waiting: dict[TopicPartition, Parts]) -> dict[TopicPartition, Ack]:
        """Send until every batch is acknowledged; `waiting` is emptied."""
        deadline = clock.monotonic() + self._timeout
        backoff = Backoff()
        acks: dict[TopicPartition, Ack] = {}
        if any(self._cluster.leader(partition).node < 0 for partition in waiting):
            await self._cluster.refresh({partition.topic for partition in waiting}, self._timeout)
        while waiting:
            problem = "no leader"
            left = max(0.1, deadline - clock.monotonic())
            sent = (self._send(node, part, left) for node, part in self._requests(waiting))
            for answer in await asyncio.gather(*sent, return_exceptions=True):
                if isinstance(answer, WireError | TimeoutError):
                    problem = str(answer) or "no connection in time"
                elif isinstance(answer, BaseException):
                    raise answer
                else:
                    problem = self._take(answer, waiting, acks) or problem
            if not waiting:
                break
            if clock.monotonic() > deadline:
                raise ClusterUnreachable(
                    f"{self}: Produce to {', '.join(map(str, waiting))}: no answer within {self._timeout:g} s"
                    f" (last: {problem})"
                )
            await asyncio.sleep(backoff.next())
            await self._cluster.refresh(
                {partition.topic for partition in waiting}, max(0.1, deadline - clock.monotonic())
            )
        return acks

    def _take(self, acks: Iterable[Ack], waiting: dict[TopicPartition, Parts], taken: dict[TopicPartition, Ack]) -> str:
        """Note what was appended; what is to be sent again, and why, or the empty string."""
        problem = ""
        for ack in acks:
            if ack.partition not in waiting:
                continue
            if ack.error_code and ack.error_code != _DUPLICATE:
                doing = f"Produce to {ack.partition}"
                self._coordinator.judge(ack.error_code, doing, ack.partition.topic, ack.message)
                problem = f"{ack.partition}: {int(ack.error_code)} {ack.error_code.name}"
            else:
                taken[ack.partition] = ack
                del waiting[ack.partition]
        return problem

    def _requests(self, waiting: Mapping[TopicPartition, Parts]) -> list[tuple[int, dict[TopicPartition, Parts]]]:
        """What goes to which leader, in requests of a limited size."""
        requests: list[tuple[int, dict[TopicPartition, Parts]]] = []
        open_: dict[int, tuple[int, dict[TopicPartition, Parts]]] = {}
        for partition, parts in waiting.items():
            if (node := self._cluster.leader(partition).node) < 0:
                continue
            size, request = open_.get(node, (REQUEST_BYTES, {}))
            length = sum(map(len, parts))
            if size + length > REQUEST_BYTES:
                size, request = 0, {}
                requests.append((node, request))
            request[partition] = parts
            open_[node] = size + length, request
        return requests

    async def _send(self, node: int, batches: Mapping[TopicPartition, Parts], left: float) -> list[Ack]:
        async with asyncio.timeout(left):
            connection = await self._cluster.connection(node, PURPOSE)
        request = ProduceRequest(connection.version(_PRODUCE), batches, {}, self._coordinator.transactional_id)
        answer = await connection.call(_PRODUCE, request, min(left, ACK_TIMEOUT + CALL_TIMEOUT))
        return list(read_produce(answer, {}))


async def awaiting_markers(cluster: Cluster, transactional_id: str) -> frozenset[TopicPartition]:
    """The partitions to which the coordinator still has to write the marker of a transaction that was committed; none
    where no commit is under way. Raises ClusterUnreachable, AccessDenied, BrokerError.
    """

    def build(version: int) -> Any:
        return DESCRIBE_TRANSACTIONS.request(version)(transactional_ids=(transactional_id,))

    def codes(answer: Any) -> Iterator[tuple[Any, str]]:
        yield from (
            (transaction_state.error_code, "")
            for transaction_state in answer.transaction_states
            if transaction_state.error_code != _UNKNOWN_ID
        )

    coordinator = _Coordinator(cluster, transactional_id)
    answer = await coordinator.ask(DESCRIBE_TRANSACTIONS, build, codes, "DescribeTransactions", CALL_TIMEOUT)
    return frozenset(
        TopicPartition(topic.topic, number)
        for transaction_state in answer.transaction_states
        if transaction_state.transaction_state == _COMMITTING
        for topic in transaction_state.topics
        for number in topic.partitions
    )


class _Coordinator:
    """Whoever coordinates a transactional id, asked until there is an answer."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.cluster, self.transactional_id = cluster, transactional_id
        self._node = -1

    async def ask(
        self,
        api: Api,
        build: Callable[[int], Any],
        codes: Callable[[Any], Iterable[tuple[Any, str]]],
        doing: str,
        timeout: float,
    ) -> Any:
        """The answer without an error code to the request that `build(version)` makes. `codes` finds the codes in an
        answer, each with the topic that it is about, or the empty string.
        """
        deadline = clock.monotonic() + timeout
        backoff = Backoff(first=0.02, longest=1.0)
        while True:
            left = max(0.1, deadline - clock.monotonic())
            try:
                if self._node < 0:
                    await self._find(left)
                async with asyncio.timeout(left):
                    connection = await self.cluster.connection(self._node, PURPOSE)
                answer = await connection.call(api, build(connection.version(api)), min(left, CALL_TIMEOUT))
                code, topic = next(((code, topic) for code, topic in codes(answer) if code), (None, ""))
                if code is None:
                    return answer
                self.judge(code, doing, topic)
                self.cluster.disowned(self._node, code, self.transactional_id)
                problem = f"{int(code)} {code.name}"
                is_known = code == _CONCURRENT
            except (WireError, TimeoutError) as lost:
                problem = str(lost) or "no connection in time"
                is_known = False
            if clock.monotonic() > deadline:
                raise ClusterUnreachable(
                    f"{self.cluster}: {doing} of transactional id {self.transactional_id}: no clear answer"
                    f" within {timeout:g} s (last: {problem})"
                )
            await asyncio.sleep(backoff.next())
            if not is_known:
                self._node = -1

    async def _find(self, left: float) -> None:
        """Ask any broker, by metadata made anew, for the coordinator may be a broker that has just come."""
        try:
            await self.cluster.refresh(timeout=left)
        except ClusterUnreachable as lost:
            raise ConnectionLost(str(lost)) from lost
        asked = random.choice(self.cluster.nodes)
        connection = await self.cluster.connection(asked, PURPOSE)
        version = connection.version(FIND_COORDINATOR)
        many = version >= _MANY_COORDINATORS
        key: dict[str, Any] = {"coordinator_keys": (self.transactional_id,)} if many else {"key": self.transactional_id}
        request = FIND_COORDINATOR.request(version)(key_type=_TRANSACTION_KEY, **key)
        answer = await connection.call(FIND_COORDINATOR, request, min(left, CALL_TIMEOUT))
        coordinator = next(iter(answer.coordinators), None) if many else answer
        if coordinator is None:
            raise MalformedFrame("a FindCoordinator answer without the transactional id")
        if coordinator.error_code:
            self.judge(coordinator.error_code, "FindCoordinator")
            raise ConnectionLost(f"{int(coordinator.error_code)} {coordinator.error_code.name}")
        self._node = int(coordinator.node_id)

    def judge(self, code: Any, doing: str, topic: str = "", detail: str = "") -> None:
        """Raise what a code means, unless it is worth another try."""
        own = f"transactional id {self.transactional_id}"
        message = f"{self.cluster}: {doing}"
        if code in _FENCED:
            raise Fenced(
                f"{message}: {code.name}: another mirror of this flow writes under {own} now, or this one took longer"
                " than its transaction may; stop one of the two, if there are two",
                self.transactional_id,
            )
        if code == _ID_DENIED:
            raise AccessDenied(f"{message} needs WRITE on {own}", "WRITE")
        if code == _TOPIC_DENIED and topic:
            raise AccessDenied(f"{message} needs WRITE on topic {topic}", "WRITE")
        if code in AUTHORIZATION_ERRORS or not code.retriable:
            raise refusal(code, f"{message} under {own}{detail and f': {detail}'}")


def _only_code(answer: Any) -> Iterator[tuple[Any, str]]:
    yield answer.error_code, ""


def _codes_by_topic(answer: Any) -> Iterator[tuple[Any, str]]:
    """Those of partitions that were the reason first: the others were not tried because of them."""
    codes = [
        (part.partition_error_code, topic.name)
        for topic in answer.results_by_topic_v3_and_below
        for part in topic.results_by_partition
    ]
    yield from sorted(codes, key=lambda code: code[0] == _NOT_ATTEMPTED)
