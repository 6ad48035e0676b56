"""`mirror demo`, and the applications of it and of docker-compose.yml."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from waiting import until

from mirror.lab.demo.clients import ClientPlace, GroupReader, Progress, RecordWriter, create, ends_of, stands
from mirror.lab.demo.producers import Ends, JavaFiller, Live, PlainFiller, TransactionalFiller, pool
from mirror.lab.embedded import Cluster


@pytest.mark.proves("mirror demo")
def test_the_demonstration_holds() -> None:
    done = subprocess.run([sys.executable, "-m", "mirror", "demo", "--json"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout)
    assert (found["ok"], found["objections"]) == (True, [])
    assert all(one["identical_bytes"] and one["offsets_equal"] for one in found["topics"])


def test_every_producer_writes_what_it_says(own_source: Cluster, topic_name: str, tmp_path: Path) -> None:
    names = [f"{topic_name}-{kind}" for kind in ("java", "c", "live", "paid")]
    admin = AdminClient({"bootstrap.servers": own_source.bootstrap})
    for created in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        created.result()
    java, c, live_topic, paid = names
    address, records, stopping = own_source.bootstrap, pool(count=300), threading.Event()
    by_java = JavaFiller(address, java, "zstd", records, 700, stopping, tmp_path)
    by_c = PlainFiller(address, c, "gzip", records, 700, stopping)
    values = sum(len(record.value) for record in (*records, *records, *records[:100]))
    keys = sum(len(record.key) for record in (*records, *records, *records[:100]))
    in_transactions = TransactionalFiller(address, paid, "lz4", records, 700, stopping, size=50)
    assert in_transactions.run() == 13 * sum(len(record.key) + len(record.value) for record in records[:50])
    assert (in_transactions.written, in_transactions.committed) == (700, 650)
    assert by_java.run() == values
    assert by_c.run() == values + keys
    live = Live(address, live_topic, "lz4", records, rate=2000)
    live.start()
    until(lambda: live.written >= 200)
    live.stop()
    ends = Ends(address).of(dict.fromkeys(names, 2))
    assert len(ends) == 8
    found = Counter[str]()
    for (topic, _), end in ends.items():
        found[topic] += end
    assert live.written >= 200
    assert found.pop(paid) >= 700 + 14, "a marker, at least, for each transaction"
    assert found == {java: 700, c: 700, live_topic: live.written}
    assert Ends(address).of({java: 2, "not-there": 1}, growing=True).keys() == {(java, 0), (java, 1)}


def written_and_read(place: ClientPlace, records: int) -> Progress:
    """What a reader has come to, once at least so many records lie in the log and one of both has said that it lives;
    both have then ended.
    """
    no_more, enough = threading.Event(), threading.Event()
    reader = GroupReader(place, enough)
    writes = threading.Thread(target=RecordWriter(place, 400, no_more).run)
    reads = threading.Thread(target=reader.run)
    writes.start()
    reads.start()
    try:
        until(lambda: sum(reader.progress.next.values()) > records and place.alive.exists(), lambda: reader.progress)
        no_more.set()
        writes.join()
        ends = ends_of(place.bootstrap, place.topic)
        until(lambda: reader.progress.next == ends, lambda: reader.progress)
    finally:
        no_more.set()
        enough.set()
        reads.join()
        writes.join()
    assert stands(place, place.bootstrap) == ends
    return reader.progress


def test_applications_write_and_read_and_go_on_where_they_were(
    own_source: Cluster, topic_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ClientPlace(topic_name, topic_name, own_source.bootstrap, tmp_path / "address", tmp_path / "alive")
    create(place)
    first, second = written_and_read(place, 200), written_and_read(place, 400)
    assert first.next.keys() == second.next.keys() == set(range(3))
    assert first.repeated == second.repeated == 0
    assert first.read + second.read == sum(second.next.values())
    assert place.alive.exists()
    assert '"event": "stopped_writing"' in capsys.readouterr().out
