"""Random damage to everything that comes from a broker.

    python fuzz/run.py [--seconds N] [--seed S] [--only N] [target ...]

Each round makes a sound input, damages it, and hands it to the code that reads such input. Only the error that is meant
for damage may come out. The rounds run in a child process with little memory, so that an abort inside a library is a
finding too. A finding is printed with what repeats it, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from entities import RESPONSES, answer, lies, sample  # noqa: E402
from rawbatches import batch, legacy  # noqa: E402

from mirror.batch.checksum import crc_holds, records_crc  # noqa: E402
from mirror.batch.header import HEADER_BYTES, split  # noqa: E402
from mirror.batch.restamp import Stamp, passed, restamp  # noqa: E402
from mirror.classifier import VERDICTS, classify  # noqa: E402
from mirror.errors import AccessDenied, FrameTooLarge, MalformedBatch, MalformedFrame  # noqa: E402
from mirror.offsets import journal  # noqa: E402
from mirror.policy.rules import Rules  # noqa: E402
from mirror.wire.cluster import Cluster, Endpoint, TopicPartition  # noqa: E402
from mirror.wire.fetch import Ask, read_fetch  # noqa: E402
from mirror.wire.frames import FrameReader  # noqa: E402
from mirror.wire.produce import read_produce  # noqa: E402
from mirror.wire.protocol import FETCH, METADATA, PRODUCE, decode, decode_versions  # noqa: E402

MEMORY: Final = 2 << 30
LIMIT: Final = 4096
_TELLING: Final = (
    b"\0",
    b"\x7f",
    b"\x80",
    b"\xff",
    b"\xff\xff\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\x80\0\0\0",
)


def damaged(data: bytes, random: Random) -> bytes:
    """`data` with a few bytes changed, cut out, repeated, or replaced by numbers that mean trouble."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 2, 4, 16))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << random.randrange(8)
            case 1:
                telling = random.choice(_TELLING)
                changed[at : at + len(telling)] = telling
            case 2:
                del changed[at : at + random.randrange(1, 20)]
            case 3:
                changed[at:at] = changed[at : at + random.randrange(1, 60)]
            case _:
                changed[at:at] = random.randbytes(random.randrange(1, 9))
    return bytes(changed[: random.randrange(len(changed) + 1)] if random.randrange(8) == 0 else changed)


def batches(random: Random) -> None:
    """A record set, through all that the relay does with it."""
    offset, whole = random.randrange(1000), b""
    for _ in range(random.randrange(1, 5)):
        count = random.randrange(1, 9)
        if random.randrange(6):
            attributes, payload = random.randrange(128), random.randbytes(random.randrange(80))
            whole += batch(
                offset, count=count, attributes=attributes, payload=payload, producer_id=random.randrange(-1, 3)
            )
        else:
            whole += legacy(offset, random.randrange(2))
        offset += count
    data = damaged(whole, random)
    seen, next_offset = 0, random.randrange(1000)
    try:
        for raw in split(memoryview(data)):
            assert bytes(raw.data) == data[seen : seen + raw.header.size]
            seen += len(raw.data)
            sound = raw.header.magic == 2 and crc_holds(raw)
            verdict = classify(raw.header, Rules(), next_offset=next_offset, crc_holds=sound)
            assert verdict in VERDICTS
            if raw.header.magic == 2:
                stamped = restamp(raw, Stamp(7)) + bytes(raw.records)
                (again,) = split(memoryview(stamped))
                assert crc_holds(again)
                assert records_crc(again) == records_crc(raw)
                assert len(passed(raw)) == HEADER_BYTES
                next_offset = max(next_offset, raw.header.next_offset)
                assert next_offset < 1 << 63
    except MalformedBatch:
        return


def frames(random: Random) -> None:
    """A stream in random pieces, into a buffer that must not outgrow it."""
    bodies = [random.randbytes(random.choice((0, 3, 100, 2000))) for _ in range(random.randrange(1, 6))]
    data = damaged(b"".join(len(body).to_bytes(4, "big") + body for body in bodies), random)
    reader = FrameReader(LIMIT, first_size=random.choice((8, 16, 256)))
    first, given = reader.capacity, 0
    try:
        while data:
            room = reader.buffer()
            count = min(len(room), len(data), random.randrange(1, 700))
            room[:count], data = data[:count], data[count:]
            given += count
            assert all(len(frame) <= LIMIT for frame in reader.received(count))
            assert reader.capacity <= max(first, 2 * given)
    except FrameTooLarge:
        pass


def answers(random: Random) -> None:
    """An answer of any API and version, its lengths lying, or damaged otherwise."""
    response = random.choice(RESPONSES)
    value = sample(response, random)
    lying = list(lies(value)) if random.randrange(4) == 0 else []
    frame = memoryview(damaged(answer(random.choice(lying) if lying else value), random))
    try:
        found = decode(response, frame)
    except MalformedFrame:
        return
    if found.__api_key__ == FETCH.key:
        asks = [
            Ask(TopicPartition("a", n), getattr(t, "topic_id", None), 0, 0, 0, 1)
            for n in (0, 1)
            for t in found.responses[:1]
        ]
        for fetched in read_fetch(found, asks):
            memoryview(fetched.records)
    elif found.__api_key__ == METADATA.key:
        with suppress(AccessDenied):
            Cluster(Endpoint("a", ()))._learn(found, frozenset())
    elif found.__api_key__ == PRODUCE.key:
        list(read_produce(found, {"a": None}))


def versions(random: Random) -> None:
    """The first answer on a connection."""
    response = random.choice([entity for entity in RESPONSES if entity.__name__ == "ApiVersionsResponse"])
    with suppress(MalformedFrame):
        decode_versions(memoryview(damaged(answer(sample(response, random)), random)))


def entries(random: Random) -> None:
    """The journal; a right CRC over damaged records half the time."""
    if random.randrange(2):
        data = damaged(journal.encode([(b"key", random.randbytes(20))] * random.randrange(1, 4)), random)
    else:
        records = damaged(journal.encode([(b"key", b"value")] * 2)[HEADER_BYTES:], random)
        data = batch(0, count=2, payload=records, max_timestamp=2**62, base_timestamp=random.getrandbits(63) - 2**62)
    with suppress(MalformedBatch):
        journal.decode(memoryview(data))


TARGETS: Final[dict[str, Callable[[Random], None]]] = {
    target.__name__: target for target in (batches, frames, answers, versions, entries)
}


def rounds(names: list[str], seed: int, seconds: float, only: int | None, progress: mmap.mmap) -> int:
    """In the child: round after round, each from its own number alone."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    deadline = time.monotonic() + seconds
    number = only or 0
    while only is not None or time.monotonic() < deadline:
        progress[:8] = number.to_bytes(8, "big")
        try:
            TARGETS[names[number % len(names)]](Random(f"{seed}/{number}"))
        except Exception:
            traceback.print_exc()
            return 1
        if only is not None:
            break
        number += 1
    return 0


def main() -> int:
    """Run the rounds in a child, and tell how it ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="N", help="repeat round N alone")
    parser.add_argument("target", nargs="*", choices=[[], *TARGETS], help=", ".join(TARGETS))
    given = parser.parse_args()
    names = given.target or list(TARGETS)
    progress = mmap.mmap(-1, 8)
    child = os.fork()
    if not child:
        code = 2
        try:
            code = rounds(names, given.seed, given.seconds, given.only, progress)
        finally:
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    number = int.from_bytes(progress[:8], "big")
    if code:
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        print(f"round {number} ended with {how}; to repeat it:")
        print(f"    python fuzz/run.py --seed {given.seed} --only {number} {' '.join(names)}")
        return 1
    print(f"{number:,} rounds over {', '.join(names)}: nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
