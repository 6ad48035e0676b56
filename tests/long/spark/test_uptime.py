"""What must not end a mirror, and what must end it in time: terminals, disks, Spark's JVM, service managers."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from helpers import config_file, make_topic, produce
from samerecords import assert_same_records
from sparkless import InThisProcess

from mirror import host
from mirror.commands import run as notify
from mirror.errors import ConfigError, EngineLost
from mirror.lab.embedded import Cluster
from mirror.spark import jobs, session
from mirror.spark.jobs import FAILED_EPOCHS, Epochs
from mirror.spark.session import Engine, Scratch

TIMEOUT = 180.0


# --- Spark's JVM (no JVM) --------------------------------------------------------------------------------------------


def silent(_: Any) -> bool:
    time.sleep(3)
    return True


def test_a_jvm_that_hangs_is_ended_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that answers again in time is not."""
    ended: list[None] = []
    monkeypatch.setattr(session, "end_jvm", lambda: ended.append(None))
    for name, seconds in (("ASK_SECONDS", 0.01), ("ANSWER_SECONDS", 0.05), ("HANGS_SECONDS", 0.3)):
        monkeypatch.setattr(session, name, seconds)
    context: Any = InThisProcess()

    async def watch(seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await Engine(context).watch()

    with pytest.raises(TimeoutError):
        asyncio.run(watch(0.5))
    monkeypatch.setattr(session, "is_alive", silent)
    with pytest.raises(EngineLost, match="Spark's JVM hangs: it has not answered for"):
        asyncio.run(watch(20))
    assert ended


def test_a_command_ends_a_jvm_that_hangs_while_it_waits_for_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose call fails then; and one that answers is left alone."""
    ended = threading.Event()
    monkeypatch.setattr(session, "end_jvm", ended.set)
    for name, seconds in (("ASK_SECONDS", 0.01), ("ANSWER_SECONDS", 0.05), ("HANGS_SECONDS", 0.3)):
        monkeypatch.setattr(session, name, seconds)
    context: Any = InThisProcess()
    with Engine(context).watched():
        assert not ended.wait(0.5)
    monkeypatch.setattr(session, "is_alive", silent)
    with Engine(context).watched():
        assert ended.wait(20), "the command waits for good"


def test_what_the_jvm_is_asked_holds_up_nothing_and_has_a_deadline() -> None:
    """A call that hangs is given up, and the event loop goes on all the while."""
    answers, where = threading.Event(), list[int]()

    def hangs() -> None:
        where.append(threading.get_ident())
        answers.wait(TIMEOUT)

    async def ask() -> int:
        asking, turns = asyncio.create_task(session.asked(hangs, 0.2)), 0
        while not asking.done():
            await asyncio.sleep(0.005)
            turns += 1
        with pytest.raises(TimeoutError):
            await asking
        return turns

    began = time.monotonic()
    try:
        turns = asyncio.run(ask())
    finally:
        answers.set()
    assert time.monotonic() - began < TIMEOUT / 2
    assert turns > 3
    assert where != [threading.get_ident()]


def test_jobs_that_fail_after_one_succeeded_are_tried_again_with_longer_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "FAILED_PAUSE", 0.001)
    monkeypatch.setattr(jobs, "LONGEST_PAUSE", 0.004)
    fails, failures = [False], list[None]()

    class Failing(InThisProcess):
        def collect(self) -> list[Any]:
            if fails[0]:
                raise OSError("No space left on device")
            return super().collect()

    async def run() -> None:
        context: Any = Failing()
        ours = Epochs(context, "test", 0.1, asyncio.Event(), lambda: failures.append(None))
        for number in range(5 * FAILED_EPOCHS):
            assert await ours.run(number, lambda *_: []) == []
            fails[0] = True
        bounded = Epochs(context, "test", 0.1, asyncio.Event(), lambda: None, is_bounded=True)
        for number in range(FAILED_EPOCHS - 1):
            await bounded.run(number, lambda *_: [])
        with pytest.raises(EngineLost, match="No space left"):
            await bounded.run(FAILED_EPOCHS, lambda *_: [])

    asyncio.run(run())
    assert len(failures) == 5 * FAILED_EPOCHS - 1


def test_scratch_folders_that_are_gone_are_made_again(tmp_path: Path) -> None:
    own, blocks, others = tmp_path / "spark-1" / "pyspark-1", tmp_path / "blockmgr-1", tmp_path / "blockmgr-old"
    for folder in (own, blocks / "0c", others):
        folder.mkdir(parents=True)
    os.utime(others, (1, 1))
    context: Any = SimpleNamespace(_temp_dir=str(own), master="local[4,4]")
    scratch = Scratch.of(context)
    assert scratch.mend() == 0
    for folder in tmp_path.iterdir():
        shutil.rmtree(folder)
    assert scratch.mend() == 4
    assert sorted(one.relative_to(tmp_path) for one in tmp_path.rglob("*")) == [
        *(Path("blockmgr-1"), Path("blockmgr-1/0c"), Path("spark-1"), Path("spark-1/pyspark-1"))
    ]


def test_scratch_folders_are_made_again_where_no_epoch_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A flow whose topics are all re-keyed has none, and Spark remembers the folders of its shuffles."""
    monkeypatch.setattr(session, "ASK_SECONDS", 0.01)
    own = tmp_path / "spark-1" / "pyspark-1"
    own.mkdir(parents=True)
    context: Any = SimpleNamespace(_temp_dir=str(own), master="local[4,4]")
    monkeypatch.setattr(session, "is_alive", lambda _: True)

    async def run() -> None:
        watching = asyncio.create_task(Engine(context).watch())
        for _ in range(2):
            shutil.rmtree(tmp_path / "spark-1")
            async with asyncio.timeout(TIMEOUT):
                while not own.is_dir():
                    await asyncio.sleep(0.01)
        watching.cancel()

    asyncio.run(run())


def test_a_user_without_a_name_gets_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: int) -> Any:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match="has no name on this machine, without which Spark does not start"):
        host.find()


# --- service managers and signals -------------------------------------------------------------------------------------


def test_a_service_manager_is_notified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify.notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert notify.notify("READY=1")
        monkeypatch.setenv("WATCHDOG_USEC", "20000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))

        async def live() -> None:
            async with asyncio.timeout(0.2):
                await notify.live()

        with pytest.raises(TimeoutError):
            asyncio.run(live())
        assert [listening.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


HANGING = """
import signal, sys, time
from mirror.commands import run as interrupts
interrupts.END_SECONDS = {seconds}
interrupts.end_in_time(lambda: print("killed", flush=True))
print("ready", flush=True)
while True:
    time.sleep(1)
"""


@pytest.mark.parametrize(("seconds", "times"), [(0.2, 1), (60, 2)])
def test_a_process_that_hangs_ends_in_time_and_at_once_on_a_second_signal(seconds: float, times: int) -> None:
    script = HANGING.format(seconds=seconds)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        for _ in range(times):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.1)
        assert process.wait(30) == 128 + signal.SIGTERM
        assert process.stdout.read() == b"killed\n"


# --- all of it --------------------------------------------------------------------------------------------------------


def until(holds: Any, why: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not holds():
        assert time.monotonic() < deadline, why()
        time.sleep(0.05)


@pytest.mark.brokers
@pytest.mark.spark
def test_a_mirror_outlives_its_scratch_folder_and_its_log_and_ends_in_time_though_its_jvm_hangs(
    own_source: Cluster, own_target: Cluster, topic_name: str, tmp_path: Path
) -> None:
    """One mirror, one trouble after another: its stderr is full from the start, its scratch folder is emptied, its
    process group is hung up as by a closed terminal (which asks the driver to read its configuration again), and then
    Spark's JVM is stopped.
    """
    source, target, scratch = own_source.bootstrap, own_target.bootstrap, tmp_path / "scratch"
    make_topic(source, topic_name)
    produce(source, topic_name, [b"one"] * 10)
    conf = {"conf": {"spark.local.dir": str(scratch)}, "epoch_s": 2}
    config = config_file(tmp_path, source, target, [topic_name], flow=topic_name)
    output = json.loads(config.read_text()) | {"spark": conf, "metrics": {"listen": None}}
    config.write_text(json.dumps(output))
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_DIRS"}

    consumer = Consumer({"bootstrap.servers": target, "group.id": "none"})

    def copied(count: int) -> bool:
        if process.poll() is not None:
            return True
        try:
            return bool(consumer.get_watermark_offsets(TopicPartition(topic_name, 0), timeout=5)[1] == count)
        except KafkaException:  # it is not made yet
            return False

    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "mirror", "run", str(config)], stderr=full, start_new_session=True, env=environment
        )
    try:
        until(lambda: copied(10), lambda: "nothing is copied")
        assert process.poll() is None
        (jvm,) = (one for one in psutil.Process(process.pid).children(recursive=True) if one.name() == "java")
        assert os.getsid(jvm.pid) == jvm.pid, "what a terminal sends to its processes does not reach it"
        assert not [one for one in scratch.rglob("*") if one.is_file()], "no file holds what tasks are given"
        for folder in scratch.iterdir():
            shutil.rmtree(folder)
        os.killpg(process.pid, signal.SIGHUP)
        time.sleep(5)  # epochs begin meanwhile
        produce(source, topic_name, [b"two"] * 10)
        until(lambda: copied(20), lambda: "nothing more is copied")
        assert process.poll() is None
        jvm.suspend()
        time.sleep(3)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        code = process.wait(60)
        print("ended after", time.monotonic() - began, "s with", code)
        assert code in (0, 128 + signal.SIGTERM)
        assert time.monotonic() - began < 30, "ten seconds, and what a busy machine adds"
        until(lambda: not psutil.pid_exists(jvm.pid), lambda: "the JVM is left")
        assert_same_records(source, target, topic_name, 1)
        consumer.close()
    finally:
        if process.poll() is None:
            for one in psutil.Process(process.pid).children(recursive=True):
                one.kill()
            process.kill()
            process.wait(30)
