"""One connection: answers in order or not at all, a deadline on each, and a break that nobody misses."""

from __future__ import annotations

import asyncio
import select
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from entities import encoded
from fakebroker import Call, FakeBroker, framed, in_loop
from kio.schema.errors import ErrorCode
from kio.schema.response_header.v0.header import ResponseHeader
from kio.static.primitive import i32
from pydantic import SecretStr
from waiting import DEADLINE_S, MovableClock

from mirror.errors import ConnectionLost, NotAuthenticated, UnsupportedVersion
from mirror.kafka.auth import Conversation, Plain, Security
from mirror.kafka.connection import FRAME_LIMIT, LONGEST_MUTE, Connection
from mirror.kafka.protocol import API_VERSIONS, INIT_PRODUCER_ID, METADATA, SASL_HANDSHAKE, Versions

#: A small request, for what any request goes through.
ASK = INIT_PRODUCER_ID


def request() -> Any:
    return ASK.request(5)(transactional_id=None, transaction_timeout=timedelta(0), producer_id=-1, producer_epoch=-1)


def answered(call: Call, producer_id: int = 7, throttled: timedelta = timedelta(0)) -> Any:
    return call.schema().InitProducerIdResponse(
        throttle_time=throttled, error_code=ErrorCode(0), producer_id=producer_id, producer_epoch=0
    )


def silent(_call: Call) -> None:
    """No answer."""


@asynccontextmanager
async def connected(script: Callable[[Call], Any] = silent) -> AsyncIterator[tuple[FakeBroker, Connection]]:
    async with FakeBroker({ASK.key: script}) as broker:
        connection = await Connection.open(broker.address)
        try:
            yield broker, connection
        finally:
            connection.close()


async def lost(future: asyncio.Future[Any]) -> ConnectionLost:
    with pytest.raises(ConnectionLost) as caught:
        await future
    return caught.value


@in_loop
async def test_many_requests_on_the_way_are_answered_in_their_order() -> None:
    async with connected() as (broker, connection):
        futures = [connection.send(ASK, request()) for _ in range(50)]
        assert connection.in_flight == 50
        calls = await broker.called(ASK, 50)
        numbers = [call.correlation_id for call in calls]
        assert numbers == sorted(set(numbers))
        for producer_id, call in enumerate(calls):
            call.answer(answered(call, producer_id))
        assert [answer.producer_id for answer in await asyncio.gather(*futures)] == list(range(50))
        assert connection.is_open


@pytest.mark.parametrize("order", [(1, 0), (1,), (0, 0), (0, 1, 1)])
@in_loop
async def test_an_answer_out_of_order_breaks_the_connection(order: tuple[int, ...]) -> None:
    """C1. What was answered in order before it stands."""
    async with connected() as (broker, connection):
        futures = [connection.send(ASK, request()) for _ in range(2)] + [connection.send(ASK, request())]
        calls = await broker.called(ASK, 3)
        for index in order:
            calls[index].answer(answered(calls[index], index))
        in_order = [index for place, index in enumerate(order) if place == index]
        problem = await lost(futures[2])
        assert "not the next in flight" in str(problem)
        for index, future in enumerate(futures[:2]):
            if index in in_order:
                assert (await future).producer_id == index
            else:
                assert await lost(future) is problem
        assert not connection.is_open


#: What a broker may do instead of answering -> what the loss is put down to.
WRONGS: dict[str, tuple[Callable[[Call], Any], str]] = {
    "a frame that is too long": (lambda call: call.send((FRAME_LIMIT + 1).to_bytes(4, "big")), "the limit is"),
    "a negative length": (lambda call: call.send(b"\xff\xff\xff\xff"), "a frame of -1 bytes"),
    "an empty frame": (lambda call: call.send(framed(b"")), "no correlation id"),
    "another protocol": (lambda call: call.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "an HTTP server's"),
    "garbage under the right number": (
        lambda call: call.send(framed(call.correlation_id.to_bytes(4, "big") + b"\0" + b"\xff" * 50)),
        "InitProducerIdResponse",
    ),
    "too short an answer": (
        lambda call: call.send(framed(call.correlation_id.to_bytes(4, "big") + b"\0" * 8)),
        "InitProducerIdResponse",
    ),
    "too long an answer": (
        lambda call: call.send(framed(call.correlation_id.to_bytes(4, "big") + b"\0" * 100)),
        "left over",
    ),
    "hanging up": (lambda call: call.hang_up(), "closed by the broker"),
    "hanging up inside a frame": (lambda call: call.hang_up(b"\0\0\1\0abc"), "closed by the broker"),
}


@pytest.mark.parametrize(("wrong", "reason"), WRONGS.values(), ids=WRONGS.keys())
@in_loop
async def test_whatever_goes_wrong_fails_all_in_flight_and_stays(wrong: Callable[[Call], Any], reason: str) -> None:
    """C2: the same loss for every request on its way, and for every later one."""
    async with connected() as (broker, connection):
        futures = [connection.send(ASK, request()) for _ in range(3)]
        calls = await broker.called(ASK, 3)
        wrong(calls[0])
        problem = await lost(futures[0])
        assert reason in str(problem)
        assert str(problem).startswith(f"{broker.address[0]}:{broker.address[1]}: ")
        assert [await lost(future) for future in futures[1:]] == [problem, problem]
        assert not connection.is_open
        assert connection.in_flight == 0
        assert await lost(connection.send(ASK, request())) is problem


@in_loop
async def test_silence_breaks_the_connection_at_the_deadline(clock: MovableClock) -> None:
    async with connected() as (broker, connection):
        other = connection.send(ASK, request())
        asked = asyncio.create_task(connection.call(ASK, request(), 60))
        await broker.called(ASK, 2)
        clock.move(60)
        problem = await lost(asked)
        assert "no answer to init_producer_id within 60 s" in str(problem)
        assert await lost(other) is problem
        assert not connection.is_open
        assert broker.connections == 1


@in_loop
async def test_an_answer_that_came_in_time_counts_though_this_side_was_busy_past_the_deadline(
    clock: MovableClock,
) -> None:
    async with connected() as (broker, connection):
        asked = asyncio.create_task(connection.call(ASK, request(), 60))
        (call,) = await broker.called(ASK)
        call.answer(answered(call))
        assert connection._transport
        link = connection._transport.get_extra_info("socket")
        assert select.select([link], [], [], DEADLINE_S)[0], "the answer waits in the socket"
        clock.move(70)
        assert (await asked).producer_id == 7
        await asyncio.sleep(0.001)  # behind every timer that is due
        assert connection.is_open


@pytest.mark.parametrize("sent_before", [False, True])
@in_loop
async def test_the_time_for_which_a_broker_mutes_us_is_no_silence(clock: MovableClock, *, sent_before: bool) -> None:
    """Under a quota, the answer comes at once, and the next one after the time that it names."""
    async with connected() as (broker, connection):

        def ask() -> asyncio.Task[Any]:
            return asyncio.create_task(connection.call(ASK, request(), 60))

        first, late = ask(), ask() if sent_before else None
        call = (await broker.called(ASK, 1 + sent_before))[0]
        call.answer(answered(call, throttled=timedelta(minutes=5)))
        await first
        late = late or ask()
        _, call = await broker.called(ASK, 2)
        clock.move(250)
        await asyncio.sleep(0.001)  # behind every timer that is due
        assert not late.done()
        call.answer(answered(call, 8))
        assert (await late).producer_id == 8
        assert connection.is_open


@in_loop
async def test_a_time_to_be_muted_that_is_absurd_is_not_believed(clock: MovableClock) -> None:
    async with connected() as (broker, connection):
        first = asyncio.create_task(connection.call(ASK, request(), 60))
        (call,) = await broker.called(ASK)
        call.answer(answered(call, throttled=timedelta(days=24)))
        await first
        late = asyncio.create_task(connection.call(ASK, request(), 60))
        await broker.called(ASK, 2)
        clock.move(LONGEST_MUTE + 61)
        assert "within 60 s" in str(await lost(late))


@in_loop
async def test_a_caller_that_gives_up_leaves_the_others_alone() -> None:
    async with connected() as (broker, connection):
        impatient = asyncio.create_task(connection.call(ASK, request(), 5))
        patient = asyncio.create_task(connection.call(ASK, request(), 5))
        first, second = await broker.called(ASK, 2)
        impatient.cancel()
        await asyncio.wait([impatient])
        first.send(framed(first.correlation_id.to_bytes(4, "big") + b"never read"))
        second.answer(answered(second, 2))
        assert (await patient).producer_id == 2
        assert connection.is_open


@in_loop
async def test_closing_fails_what_is_in_flight() -> None:
    async with connected() as (_, connection):
        future = connection.send(ASK, request())
        connection.close()
        connection.close()
        assert "closed here" in str(await lost(future))
        assert "closed here" in str(await lost(connection.send(ASK, request())))


@in_loop
async def test_a_request_that_cannot_be_encoded_is_not_sent_in_part() -> None:
    """C3"""
    async with connected(answered) as (broker, connection):
        broken = ASK.request(5)(
            transactional_id=None, transaction_timeout=timedelta(0), producer_id="not a number", producer_epoch=-1
        )
        with pytest.raises(Exception, match=r"int|integer|argument"):
            connection.send(ASK, broken)
        assert connection.in_flight == 0
        assert (await connection.call(ASK, request(), 5)).producer_id == 7
        assert len(broker.of(ASK)) == 1


# --- opening


@in_loop
async def test_a_broker_that_says_nothing(clock: MovableClock) -> None:
    async with FakeBroker({API_VERSIONS.key: silent}) as broker:
        opening = asyncio.create_task(Connection.open(broker.address, timeout=10))
        await broker.called(API_VERSIONS)
        clock.move(10)
        assert "no answer within 10 s" in str(await lost(opening))


@pytest.mark.parametrize(
    "script",
    [
        lambda call: call.hang_up(),
        lambda call: call.send(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        lambda call: call.send(framed(call.correlation_id.to_bytes(4, "big") + b"\xff" * 9)),
        lambda call: call.send(framed((call.correlation_id + 1).to_bytes(4, "big") + bytes(8))),
    ],
    ids=["hangs up", "speaks HTTP", "garbage", "another number"],
)
@in_loop
async def test_a_broker_that_speaks_something_else(script: Callable[[Call], Any]) -> None:
    async with FakeBroker({API_VERSIONS.key: script}) as broker:
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{broker.address[1]}"):
            await Connection.open(broker.address)


@in_loop
async def test_a_server_of_lines_is_named_by_its_answer() -> None:
    """As an HTTP one that waits for the end of its first line."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 400 Bad request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1")
    async with server:
        with pytest.raises(ConnectionLost, match="no Kafka broker listens there: its answer begins with 'HTTP', as an"):
            await Connection.open(server.sockets[0].getsockname(), timeout=0.1)


def test_a_controller_is_named() -> None:
    """It answers Vote, and no request for metadata."""
    with pytest.raises(UnsupportedVersion, match="a KRaft controller listens there, which does not answer metadata"):
        Versions({API_VERSIONS.key: (0, 4), 52: (0, 2)}).common(METADATA)


@in_loop
async def test_a_broker_too_old_for_the_question_is_understood() -> None:
    """It answers ApiVersions in version 0, with error 35 and what it does speak (KIP-511)."""

    def script(call: Call) -> None:
        schema = API_VERSIONS.schema(0, "response")
        key = schema.ApiVersion(api_key=API_VERSIONS.key, min_version=0, max_version=2)
        value = schema.ApiVersionsResponse(error_code=ErrorCode(35), api_keys=(key,))
        call.send(framed(encoded(ResponseHeader(correlation_id=i32(call.correlation_id))) + encoded(value)))

    async with FakeBroker({API_VERSIONS.key: script}) as broker:
        connection = await Connection.open(broker.address)
        with pytest.raises(UnsupportedVersion, match="api_versions: the broker speaks versions 0 to 2"):
            connection.version(API_VERSIONS)
        connection.close()


class Kept(Security):
    """One whose proof is kept, as a token is."""

    is_old = True

    async def proof(self, host: str) -> Conversation | None:  # noqa: ARG002 -- as the base has it
        return Plain("mirror", SecretStr("secret"))

    def was_old(self, proof: Conversation) -> bool:  # noqa: ARG002 -- as the base has it
        return self.is_old


class Refused(Kept):
    """One whose proof is new."""

    is_old = False


@in_loop
async def test_what_was_kept_and_is_refused_is_worth_another_connection() -> None:
    def refuses(call: Call) -> Any:
        return call.schema().SaslHandshakeResponse(error_code=ErrorCode(33), mechanisms=())

    async with FakeBroker({SASL_HANDSHAKE.key: refuses}) as broker:
        with pytest.raises(ConnectionLost, match="it was kept, and another one is asked for"):
            await Connection.open(broker.address, Kept())
        with pytest.raises(NotAuthenticated, match="PLAIN is not one of its mechanisms"):
            await Connection.open(broker.address, Refused())


@in_loop
async def test_giving_up_while_opening_leaves_nothing_open() -> None:
    async with FakeBroker({API_VERSIONS.key: silent}) as broker:
        opening = asyncio.create_task(Connection.open(broker.address))
        (call,) = await broker.called(API_VERSIONS)
        opening.cancel()
        await asyncio.wait([opening])
        assert opening.cancelled()
        await call.hung_up()
