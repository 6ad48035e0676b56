"""What `crashcut.py` does to a broker is what it says."""

from __future__ import annotations

from crashcut import crash_and_cut_all, stored_ends
from helpers import make_topic, produce, stored_batches

from mirror.lab.embedded import Cluster


def test_a_crashed_broker_leads_again_with_what_was_left_of_its_log() -> None:
    with Cluster.start(name="crashcut") as cluster:
        for topic in ("cut", "whole"):
            make_topic(cluster.bootstrap, topic)
            produce(cluster.bootstrap, topic, (b"%d" % i for i in range(100)))
        before = stored_batches(cluster.bootstrap, "cut")
        assert stored_ends(cluster, "cut") == [10 * i for i in range(1, 11)]
        assert crash_and_cut_all(cluster, {("cut", 0): 65, ("whole", 0): 1000}) == {("cut", 0): 60, ("whole", 0): 100}
        after = stored_batches(cluster.bootstrap, "cut")
        assert [bytes(one.data) for one in after] == [bytes(one.data) for one in before[:6]]
        assert len(stored_batches(cluster.bootstrap, "whole")) == 10
        produce(cluster.bootstrap, "cut", (b"other %d" % i for i in range(20)))
        last = stored_batches(cluster.bootstrap, "cut")[-1].header
        print(f"went on to {last.next_offset} in leader epoch {last.partition_leader_epoch}")
        assert last.next_offset == 80
        assert last.partition_leader_epoch > before[0].header.partition_leader_epoch
