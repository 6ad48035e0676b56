"""A fetch session: who asks one leader again and again asks for what changed, and is answered with that (KIP-227)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kio.schema.errors import ErrorCode

from mirror.kafka.cluster import TopicPartition
from mirror.kafka.fetch import Ask, Asked, FetchAnswer, Fetched, FetchRequest, asked_by_name, read_fetch

_LAST_EPOCH: Final = 2**31 - 1
#: What a leader answers that does not know a session any more, or not like this: it is asked for everything then.
SESSION_ERRORS: Final = (
    ErrorCode.fetch_session_id_not_found,
    ErrorCode.invalid_fetch_session_epoch,
    ErrorCode.fetch_session_topic_id_error,
)


class FetchSession:
    """What one leader remembers of what it was asked for (KIP-227): a request names what is asked anew or no more, an
    answer what has something new. A broker that keeps no session, which it may at any time, is asked for everything.
    """

    def __init__(self) -> None:
        self._id = self._epoch = 0  # of the last request; epoch 0 asks for everything, and for a new session
        self._is_over = True  # the next request asks for everything
        self._asks: dict[TopicPartition, Ask] = {}  # in the order in which the leader fills its answers
        self._asked: Asked = {}
        self._new: Sequence[Ask] = ()  # what the next request names
        self._forgotten: list[Ask] = []  # and what is asked for no more
        self.is_incremental = False  # whether that is what changed alone

    def ask(self, asks: Sequence[Ask]) -> None:
        """From the next request on ask for `asks` and nothing else."""
        asked = {ask.partition: ask for ask in asks}
        self._epoch = 0 if self._is_over or not self._id else self._epoch % _LAST_EPOCH + 1
        self.is_incremental, self._is_over = self._epoch > 0, False
        if not self.is_incremental:
            self._asks = {}
        self._forgotten = [
            ask
            for partition, ask in self._asks.items()
            if (again := asked.get(partition)) is None or again.topic_id != ask.topic_id
        ]
        for ask in self._forgotten:
            del self._asks[ask.partition]
        before = len(self._asks)
        self._new = [ask for ask in asks if self._asks.get(ask.partition) != ask]
        self._asks.update((ask.partition, ask) for ask in self._new)
        if self._forgotten or len(self._asks) != before:
            self._asked = asked_by_name(asks)

    def request(self, version: int, *, max_wait_ms: int, max_bytes: int) -> FetchRequest:
        """Return the request that says so."""
        session = self._id, self._epoch
        return FetchRequest(version, self._new, max_wait_ms, max_bytes, session=session, forgotten=self._forgotten)

    @property
    def asks(self) -> dict[TopicPartition, Ask]:
        """All that the leader is asked for, in the order in which it fills its answers."""
        return self._asks.copy()

    def read(self, answer: FetchAnswer) -> list[Fetched]:
        """Return the partitions of an answer. What an answer of a session leaves out has nothing new."""
        if answer.error_code:
            self.end()
            return []
        self._id = answer.session_id
        found = list(read_fetch(answer, self._asked))
        for fetched in found:
            if fetched.records:  # its turn comes behind all others (Kafka `IncrementalFetchContext`)
                self._asks[fetched.partition] = self._asks.pop(fetched.partition)
        return found

    def end(self) -> None:
        """Ask for everything, in a new session."""
        self._is_over = True

    def renew(self, partition: TopicPartition) -> None:
        """Have the next answer name a partition, whatever was answered before."""
        if partition in self._asks:
            self.end()
