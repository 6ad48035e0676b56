"""Failures that a mirror could pass over in silence, on real brokers: each is named at the first sight of it, nothing
that does not belong there reaches the target, and what is sound goes on.

The states that a mirror reaches by other ways are in test_stops.py, what a person sees of these in
test_silent_run.py.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclOperation,
)
from faults.network import Network, Rule
from faults.points import REQUESTS
from guarded import create, delete, delete_records, flip_a_stored_bit, give_back, guarded_pair, take_away
from helpers import mirror_once, produce, settings_between
from rekey_story import Story
from samerecords import read
from sparkless import InThisProcess
from watchedtask import WatchedTask

from mirror.commands.verify import verify
from mirror.driver.flow import prepare
from mirror.errors import ExitCode
from mirror.kafka.admin import Admin
from mirror.kafka.cluster import TopicPartition
from mirror.lab.embedded import Cluster
from mirror.observability.status import PartitionStatus
from mirror.replication.fetcher import DAMAGE_TRIES
from mirror.replication.topic_identity import MISSING_TRIES
from mirror.spark.rekey.microbatch import Stopped
from mirror.spark.supervisor import Supervisor
from mirror.states import State

pytestmark = pytest.mark.brokers

#: Of three brokers the first two may die; the last one leads what must go on.
LEADER, FOLLOWER = 0, 1
UNCLEAN = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[Cluster, Cluster]]:
    with guarded_pair("silent") as pair:
        yield pair


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """A source whose leaders may die."""
    with Cluster.start(nodes=3, name="silent-three") as cluster:
        yield cluster


@dataclass(slots=True)
class Scene:
    """A topic to be hurt, whose records up to now are in `before`, and a sound one beside it."""

    source: Cluster
    target: Cluster
    name: str
    before: list[list[Any]] = field(default_factory=list)
    written: dict[TopicPartition, int] = field(default_factory=dict)

    @property
    def hurt(self) -> TopicPartition:
        return TopicPartition(self.name, 0)

    @property
    def partitions(self) -> list[TopicPartition]:
        return [self.hurt, TopicPartition(self.name, 1), self.sound]

    @property
    def sound(self) -> TopicPartition:
        return TopicPartition(f"{self.name}-sound", 0)

    def make(self, replicas: Sequence[int] = (), **configs: str) -> None:
        """Both topics on both sides, with 100 records in each partition."""
        last = [self.source.nodes[-1].id]
        create(self.source, self.name, [list(replicas) or last, [*last, *replicas[1:]]], configs)
        create(self.source, self.sound.topic, [last])
        create(self.target, self.name, [[0], [0]])
        create(self.target, self.sound.topic, [[0]])
        for at in self.partitions:
            self.write(at, 100)

    def write(self, at: TopicPartition, count: int, prefix: bytes = b"") -> None:
        """So many records more."""
        first = self.written.get(at, 0)
        values = (prefix + b"%06d" % number + b"." * 100 for number in range(first, first + count))
        produce(self.source.bootstrap, at.topic, values, partition=at.partition, codec="lz4")
        self.written[at] = first + count

    def task(self, **more: Any) -> WatchedTask:
        """The mirror, from the source's brokers unless `source` says otherwise."""
        source = more.pop("source", self.source.bootstrap)
        return WatchedTask(source, self.target.bootstrap, self.partitions, **more)

    def all_mirrored(self, task: WatchedTask) -> None:
        """Wait for it, and remember what the target holds then."""
        for at in self.partitions:
            task.mirrored(at, self.written[at])
        self.remember()

    def remember(self) -> None:
        self.before = [list(read(self.target.bootstrap, *at)) for at in self.partitions[:2]]

    def assert_kept(self, *partitions: int) -> None:
        """The target has what it had, and nothing more."""
        for index in partitions:
            now = list(read(self.target.bootstrap, *self.partitions[index]))
            assert now == self.before[index]

    def assert_goes_on(self, task: WatchedTask, *others: TopicPartition) -> None:
        """What is sound is still mirrored."""
        for at in (self.sound, *others):
            self.write(at, 10)
            task.mirrored(at, self.written[at])


@pytest.fixture
def scene(guarded: tuple[Cluster, Cluster], topic_name: str) -> Scene:
    return Scene(*guarded, topic_name)


@pytest.fixture
def mortal(three: Cluster, own_target: Cluster, topic_name: str) -> Iterator[Scene]:
    """A scene with a source of three brokers."""
    yield Scene(three, own_target, topic_name)
    for node in (LEADER, FOLLOWER):
        if not three.nodes[node].alive:
            three.restart(node)


def cut_back(scene: Scene, task: WatchedTask) -> None:
    """Mirror 100 records that the follower lacks; then the leader dies, and the follower is elected all the same."""
    scene.source.kill(FOLLOWER)
    scene.write(scene.hurt, 100)
    scene.all_mirrored(task)


def elect(scene: Scene) -> None:
    scene.source.kill(LEADER)
    scene.source.restart(FOLLOWER)


TO_BEGIN_ANEW = "kafka-topics.sh --bootstrap-server {} --delete --topic {}"


def assert_says_how_to_begin_anew(found: PartitionStatus, scene: Scene) -> None:
    assert TO_BEGIN_ANEW.format(scene.target.bootstrap, scene.name) in found.detail


# --- truncation


def test_a_source_that_is_cut_back_while_it_is_mirrored(mortal: Scene) -> None:
    """A follower that lacks the last records is elected (`unclean.leader.election.enable`): the broker says so in its
    answer to the next fetch, since that names the epoch of the last batch.
    """
    mortal.make([LEADER, FOLLOWER], **UNCLEAN)
    with mortal.task() as task:
        mortal.all_mirrored(task)
        cut_back(mortal, task)
        elect(mortal)
        found = task.stopped(mortal.hurt)
        assert (found.state, found.next_offset) == (State.TRUNCATED, 200)
        assert "cut back to offset 100" in found.detail
        assert_says_how_to_begin_anew(found, mortal)
        mortal.assert_goes_on(task, TopicPartition(mortal.name, 1))
    mortal.assert_kept(0)


def test_a_source_that_is_cut_back_while_no_mirror_runs(mortal: Scene) -> None:
    """Known by the log's end; and, once the source has grown beyond it again, by what lies there."""
    mortal.make([LEADER, FOLLOWER], **UNCLEAN)
    with mortal.task() as task:
        mortal.all_mirrored(task)
        cut_back(mortal, task)
    elect(mortal)
    for grown, item in ((0, "ends at 200, the source's at 100"), (150, "cut back, and went on in leader epoch")):
        if grown:
            mortal.write(mortal.hurt, grown, b"other ")
        with mortal.task() as task:
            found = task.stopped(mortal.hurt)
            assert (found.state, found.next_offset) == (State.TRUNCATED, 200)
            assert item in found.detail
            assert_says_how_to_begin_anew(found, mortal)
            mortal.assert_goes_on(task, TopicPartition(mortal.name, 1))
        mortal.assert_kept(0)


def test_a_re_keyed_source_that_is_cut_back(mortal: Scene) -> None:
    """While no mirror runs, and it has grown beyond that place when one starts again: between two micro-batches, and
    where one of them was begun.
    """
    names = [f"{mortal.name}-{which}" for which in ("between", "begun")]
    for name in names:
        create(mortal.source, name, [[LEADER, FOLLOWER]], UNCLEAN)
    between, begun = (Story(mortal.source, mortal.target, name, is_there=True) for name in names)
    for story in (between, begun):
        story.fill(0, 100)
        story.carry_out()
    mortal.source.kill(FOLLOWER)
    for story in (between, begun):
        story.fill(100, 200)
    between.carry_out()
    begun.write(begun.planned(), 0)
    elect(mortal)
    for story in (between, begun):
        story.fill(300, 500)
    found = between.stopped()
    assert (found.state, found.next_offset) == (State.TRUNCATED, 200)
    assert "cut back to offset 100, and records up to offset 199 were re-keyed" in found.detail
    with pytest.raises(
        Stopped, match="cut back to offset 100, and a micro-batch that reaches to 200 was begun"
    ) as stop:
        begun.planned()
    assert (stop.value.state, stop.value.partition) == (State.TRUNCATED, 0)


# --- re-creation


def test_a_source_that_is_recreated_while_it_is_mirrored(scene: Scene) -> None:
    scene.make()
    with scene.task() as task:
        scene.all_mirrored(task)
        delete(scene.source, scene.name)
        create(scene.source, scene.name, [[0], [0]])
        scene.write(scene.hurt, 300, b"other ")
        found = task.stopped(scene.hurt)
        assert (found.state, found.next_offset) == (State.RECREATED, 100)
        assert task.stopped(TopicPartition(scene.name, 1)).state is State.RECREATED
        assert_says_how_to_begin_anew(found, scene)
        assert task.affected(scene.hurt) <= MISSING_TRIES
        scene.assert_goes_on(task)
    scene.assert_kept(0, 1)


@pytest.mark.parametrize("count", [30, 300], ids=["with fewer records", "with more records than were mirrored"])
@pytest.mark.parametrize("partitions", [1, 2], ids=["in fewer partitions", "in as many partitions"])
def test_a_source_that_is_recreated_while_no_mirror_runs(scene: Scene, count: int, partitions: int) -> None:
    scene.make()
    with scene.task() as task:
        scene.all_mirrored(task)
        ids = task.topic_ids
    delete(scene.source, scene.name)
    create(scene.source, scene.name, [[0]] * partitions)
    scene.written[scene.hurt] = 0
    scene.write(scene.hurt, count)  # the same values: not even the last batch need differ
    with scene.task(first_seen=ids) as task:
        for at in scene.partitions[:2]:
            found = task.stopped(at)
            assert (found.state, found.next_offset) == (State.RECREATED, 100)
            assert str(ids[scene.name]) in found.detail
            assert_says_how_to_begin_anew(found, scene)
        scene.assert_goes_on(task)
    scene.assert_kept(0, 1)


def test_a_source_that_is_deleted_while_no_mirror_runs(scene: Scene) -> None:
    """Or in the epoch before: it is not waited for."""
    scene.make()
    with scene.task() as task:
        scene.all_mirrored(task)
        ids = task.topic_ids
    delete(scene.source, scene.name)
    with scene.task(first_seen=ids) as task:
        found = task.stopped(scene.hurt)
        assert (found.state, found.next_offset) == (State.RECREATED, 100)
        assert "was deleted" in found.detail
        scene.assert_goes_on(task)
    scene.assert_kept(0, 1)


# --- retention


@pytest.mark.parametrize("continues", [False, True], ids=["stop", "continue"])
def test_a_mirror_that_retention_overtakes(scene: Scene, continues: bool) -> None:
    """The source is cut off for a moment, in which records come and go."""
    scene.make()
    with (
        Network(scene.source.bootstrap) as network,
        scene.task(source=network.bootstrap, continues_on_loss=continues) as task,
    ):
        scene.all_mirrored(task)
        network.cut()
        scene.write(scene.hurt, 100)
        delete_records(scene.source, scene.hurt, 150)
        network.heal()
        if continues:
            found = task.mirrored(scene.hurt, 200)
            assert (found.state.is_stop, found.lost) == (False, 50)
        else:
            found = task.stopped(scene.hurt)
            assert (found.state, found.next_offset) == (State.RETENTION_GAP, 100)
            assert "offsets 100 to 149" in found.detail
            assert f"mirror accept CONFIG {scene.name}" in found.detail
        assert task.affected(scene.hurt) == 1, "the first answer is enough"
        scene.assert_goes_on(task, TopicPartition(scene.name, 1))
    if continues:
        offsets = [record[0] for record in read(scene.target.bootstrap, *scene.hurt)]
        assert offsets == [*range(100), *range(150, 200)], "every offset is the source's"
    else:
        scene.assert_kept(0)


def test_retention_that_overtakes_while_no_mirror_runs(scene: Scene) -> None:
    scene.make()
    with scene.task() as task:
        scene.all_mirrored(task)
    scene.write(scene.hurt, 100)
    delete_records(scene.source, scene.hurt, 150)
    with scene.task() as task:
        found = task.stopped(scene.hurt)
        assert (found.state, found.next_offset) == (State.RETENTION_GAP, 100)
        assert "offsets 100 to 149" in found.detail
        scene.assert_goes_on(task, TopicPartition(scene.name, 1))
    scene.assert_kept(0)


# --- corruption


def test_a_bit_that_is_flipped_in_a_stored_batch(scene: Scene) -> None:
    scene.make()
    damaged = flip_a_stored_bit(scene.source, scene.hurt, 3)
    with scene.task() as task:
        found = task.stopped(scene.hurt)
        assert (found.state, damaged) == (State.CORRUPT, 30)
        assert "CRC mismatch" in found.detail
        assert f"mirror inspect {scene.name}:0 --config CONFIG --side source --from 30" in found.detail
        assert task.affected(scene.hurt) == DAMAGE_TRIES
        task.mirrored(scene.hurt, damaged)
        scene.assert_goes_on(task, TopicPartition(scene.name, 1))
    sound = list(read(scene.target.bootstrap, *scene.hurt))
    assert [record[0] for record in sound] == list(range(damaged)), "what precedes the damage, and no more"


def test_bits_that_are_flipped_on_the_wire(scene: Scene) -> None:
    """In two fetches in a row: each is asked again, and nothing of them reaches the target."""
    scene.make()
    seed = Random().randrange(2**32)
    print(f"seed {seed}")
    with Network(scene.source.bootstrap) as network:
        flips = [Rule("flip", REQUESTS["fetch"], 1, chance=Random(seed + n)) for n in range(DAMAGE_TRIES - 1)]
        network.disturb(*flips)
        with WatchedTask(network.bootstrap, scene.target.bootstrap, [scene.hurt]) as task:
            task.mirrored(scene.hurt, 100)
            assert not task.until(scene.hurt, lambda one: one.state is not State.MIRRORING).state.is_stop
            assert [flip.fired for flip in flips] == [1] * len(flips)
            assert task.affected(scene.hurt) == len(flips)
    ours, theirs = (list(read(one.bootstrap, *scene.hurt)) for one in (scene.target, scene.source))
    assert ours == theirs


# --- lost access


def test_a_source_topic_that_may_not_be_read_any_more(scene: Scene) -> None:
    scene.make()
    with scene.task() as task:
        scene.all_mirrored(task)
        take_away(scene.source, scene.name, AclOperation.READ)
        try:
            found = task.stopped(scene.hurt)
            scene.write(scene.hurt, 10)
            assert (found.state, found.next_offset) == (State.UNAUTHORIZED, 100)
            assert "topic_authorization_failed" in found.detail
            assert f"kafka-acls.sh --bootstrap-server {scene.source.bootstrap} --add" in found.detail
            assert f"--operation Read --topic {scene.name}" in found.detail
            assert task.affected(scene.hurt) == 1
            scene.assert_goes_on(task)
            with scene.task() as another:  # one that begins meanwhile
                assert another.stopped(scene.hurt).state is State.UNAUTHORIZED
                scene.assert_goes_on(another)
        finally:
            give_back(scene.source, scene.name)
    scene.assert_kept(0, 1)
    with scene.task() as task:
        task.mirrored(scene.hurt, 110)


def test_a_source_topic_that_may_not_even_be_described_any_more(scene: Scene) -> None:
    scene.make()
    with scene.task() as task:
        scene.all_mirrored(task)
        take_away(scene.source, scene.name, AclOperation.ALL)
        try:
            found = task.stopped(scene.hurt)
            assert (found.state, found.next_offset) == (State.UNAUTHORIZED, 100)
            scene.assert_goes_on(task)
            with scene.task(first_seen=task.topic_ids) as another:
                found = another.stopped(scene.hurt)
                assert found.state is State.UNAUTHORIZED
                assert f"--operation Read --topic {scene.name}" in found.detail
                scene.assert_goes_on(another)
        finally:
            give_back(scene.source, scene.name)
    scene.assert_kept(0, 1)


def test_a_target_topic_that_may_not_be_written_any_more(scene: Scene) -> None:
    scene.make()
    with scene.task() as task:
        scene.all_mirrored(task)
        take_away(scene.target, scene.name, AclOperation.WRITE)
        try:
            scene.write(scene.hurt, 10)
            found = task.stopped(scene.hurt)
            assert (found.state, found.next_offset) == (State.UNAUTHORIZED, 100)
            assert "the target answered topic_authorization_failed" in found.detail
            assert f"kafka-acls.sh --bootstrap-server {scene.target.bootstrap} --add" in found.detail
            assert f"--operation Write --topic {scene.name}" in found.detail
            assert task.affected(scene.hurt) == 1
            scene.assert_goes_on(task)
        finally:
            give_back(scene.target, scene.name)
    scene.assert_kept(0, 1)
    with scene.task() as task:
        task.mirrored(scene.hurt, 110)


def test_verify_goes_on_past_a_partition_without_a_leader(mortal: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    mortal.make([LEADER])
    topics = [mortal.name, mortal.sound.topic]
    source, target = mortal.source.bootstrap, mortal.target.bootstrap
    assert mirror_once(source, target, topics)
    mortal.source.kill(LEADER)
    settings = settings_between(source, target, topics)
    assert verify(settings, (), as_json=True) is ExitCode.CLUSTER
    found = json.loads(capsys.readouterr().out)
    assert found["equal"]
    assert [(one["topic"], one["partition"], one["records"]) for one in found["partitions"]] == [
        (mortal.name, 1, 100),
        (mortal.sound.topic, 0, 100),
    ]
    (left,) = found["not_verified"]
    assert (left["topic"], left["partition"]) == mortal.hurt
    assert "no answer within 10 s" in left["reason"]
    produce(target, mortal.sound.topic, [b"foreign"])
    assert verify(settings, (), as_json=False) is ExitCode.DIFFERENT, "a difference comes before what is not known"
    out = capsys.readouterr().out
    assert f"not verified: {mortal.hurt}: cluster eu" in out
    assert "differ: 1 difference; 1 partition was not verified" in out


def test_an_admin_asks_again_where_the_dead_are_named_as_controllers(mortal: Scene) -> None:
    """The brokers name any of themselves as the controller, for a while the dead one, too; many ask, so that some are
    said so.
    """
    mortal.make([FOLLOWER])
    mortal.source.kill(LEADER)
    settings = settings_between(mortal.source.bootstrap, mortal.target.bootstrap, [mortal.name]).source
    admins = [Admin(settings) for _ in range(8)]
    with ThreadPoolExecutor(len(admins)) as threads:
        reported = list(threads.map(lambda admin: admin.describe([mortal.name]).keys(), admins))
    assert reported == [{mortal.name}] * len(admins)


def test_the_one_broker_that_the_configuration_names_may_go_while_a_mirror_runs(mortal: Scene) -> None:
    """The tasks of the next epoch find the others, which the driver has met."""
    source, name = mortal.source, mortal.name
    create(source, name, [[source.nodes[-1].id]])
    produce(source.bootstrap, name, [b"before"] * 100)
    first = source.bootstrap.partition(",")[0]
    settings = settings_between(first, mortal.target.bootstrap, [name], flow=name)
    states: dict[TopicPartition, PartitionStatus] = {}
    context: Any = InThisProcess()

    async def all_at(many: int) -> None:
        while not any((one.state, one.next_offset) == (State.CAUGHT_UP, many) for one in states.values()):
            await asyncio.sleep(0.05)

    async def story() -> None:
        flow = replace(await asyncio.to_thread(prepare, settings), epoch_seconds=2.0)
        live = Supervisor(context, flow, states.update)
        run = asyncio.create_task(live.run())
        try:
            async with asyncio.timeout(120):
                await all_at(100)
                await asyncio.to_thread(source.kill, LEADER)
                for number in range(2, 6):  # over several epochs
                    await asyncio.to_thread(produce, source.bootstrap, name, [b"later"] * 100)
                    await all_at(100 * number)
                    await asyncio.sleep(2.0)
        finally:
            live._stop()
            await run

    asyncio.run(story())
