"""A broker that crashes and comes back with less than it had acknowledged: what a lost page cache leaves, or an
election of a replica that lagged.

    end = crash_and_cut(target_cluster, "orders", below=600)

The topic keeps its id, and every other partition of the broker keeps all that it has. Use clusters of your own: whoever
uses the broker loses it for some seconds. Records of transactions are cut like all others, markers as well, so that a
transaction may be left open.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from confluent_kafka import Consumer, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition
from waiting import until

from mirror.lab.embedded import Cluster

#: A batch's base offset and the bytes that follow these twelve; and where its last offset delta is (magic 2).
_HEAD = struct.Struct(">qi")
_LAST_DELTA, _MAGIC_AT = struct.Struct(">i"), 16
_BASE, _CRC_AT = struct.Struct(">q"), 17


def crash_and_cut(cluster: Cluster, topic: str, partition: int = 0, *, below: int) -> int:
    """Kill a broker (SIGKILL), cut one partition's log and start the broker again; where the log ends now.

    Kept are the batches that end at offset `below` at the latest. Returns when the broker leads the partition again and
    shows that end.
    """
    return crash_and_cut_all(cluster, {(topic, partition): below})[topic, partition]


def crash_and_cut_all(
    cluster: Cluster, below: Mapping[tuple[str, int], int | None], *, waits: bool = True
) -> dict[tuple[str, int], int]:
    """The same for several partitions (topic, partition) at one crash; where there are none, nothing is lost. Unless it
    `waits`, it returns as soon as the broker answers.
    """
    cluster.kill(0)
    data = cluster.nodes[0].data
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)
    (data / "recovery-point-offset-checkpoint").unlink(missing_ok=True)  # recover all, not from there on
    ends = {at: _cut(data / f"{at[0]}-{at[1]}", below[at]) for at in below}
    cluster.restart(0)
    for (topic, partition), end in ends.items() if waits else ():
        _await_end(f"127.0.0.1:{cluster.nodes[0].port}", topic, partition, end)
    return ends


def stored_ends(cluster: Cluster, topic: str, partition: int = 0) -> list[int]:
    """The offset behind each batch of a partition's log on disk: where it can be cut."""
    folder = cluster.nodes[0].data / f"{topic}-{partition}"
    return [end for segment in _segments(folder) for _, end in _batches(segment)]


def damage(cluster: Cluster, topic: str, partition: int, above: int, share: int) -> tuple[int, int] | None:
    """Flip a bit of the checksum of one batch on disk while the broker runs, as a failing disk does: its records can
    still be decoded by who does not check it. `above`: only batches that end behind this offset; `share`: in percent,
    which of them. From which offset on to before which the batch is; None where there is none.
    """
    folder = cluster.nodes[0].data / f"{topic}-{partition}"
    found = list[tuple[Path, int, int, int]]()
    for segment in _segments(folder):
        at = 0
        for size, following in _batches(segment):
            found.append((segment, at, size, following))
            at += size
    found = [one for one in found if one[3] > above]
    if not found:
        return None
    segment, at, _, following = found[(len(found) - 1) * share // 100]
    with segment.open("r+b") as file:
        file.seek(at)
        (first,) = _BASE.unpack(file.read(_BASE.size))
        file.seek(at + _CRC_AT)
        byte = file.read(1)[0]
        file.seek(at + _CRC_AT)
        file.write(bytes([byte ^ 1]))
    return first, following


def _cut(folder: Path, below: int | None) -> int:
    """Cut the segments in a folder, and remove what a broker makes anew of them; the log's end.

    `leader-epoch-checkpoint` stays: a broker forces it to disk at each election, and cuts it to the log as it starts.
    """
    segments = _segments(folder)
    end, is_cut = int(segments[0].stem), False
    for segment in segments:
        keep = 0
        for size, following in _batches(segment) if not is_cut else ():
            if below is not None and following > below:
                is_cut = True
                break
            keep, end = keep + size, following
        if is_cut and not keep and segment is not segments[0]:
            segment.unlink()
        else:
            with segment.open("r+b") as file:
                file.truncate(keep)
    for pattern in ("*.index", "*.timeindex", "*.txnindex", "*.snapshot"):
        for path in folder.glob(pattern):
            path.unlink()
    return end


def _segments(folder: Path) -> list[Path]:
    found = sorted(folder.glob("*.log"))
    assert found, f"{folder} holds no log"
    return found


def _batches(segment: Path) -> Iterator[tuple[int, int]]:
    """Of each whole batch in a segment: its size in bytes, and the offset behind it."""
    stored = segment.read_bytes()
    at = 0
    while at + _HEAD.size <= len(stored):
        base, length = _HEAD.unpack_from(stored, at)
        size = _HEAD.size + length
        if length <= 0 or at + size > len(stored):
            return  # preallocated, or torn
        assert stored[at + _MAGIC_AT] == 2, "of older formats only the records show where a batch ends"
        yield size, base + _LAST_DELTA.unpack_from(stored, at + 23)[0] + 1
        at += size


def _await_end(bootstrap: str, topic: str, partition: int, end: int) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "crashcut", "log_level": 0})

    def leads() -> bool:
        try:
            _, seen = consumer.get_watermark_offsets(ConfluentPartition(topic, partition), timeout=2.0)
        except KafkaException:  # no leader yet
            return False
        return seen >= end  # whoever copies to it may be quick

    try:
        until(leads, lambda: f"{topic}-{partition} was cut to offset {end}, and its broker does not show that end")
    finally:
        consumer.close()
