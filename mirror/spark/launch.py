"""Start Spark's JVM and context, or say in one sentence why they do not start.

What can be known before a JVM runs is checked first: the master's address, what it needs of the environment, sizes of
memory, and whether anything listens there. What the JVM prints while it starts is kept back, since it names the cause
of a failure, and is passed on once Spark runs. On a cluster, one task then says which Spark, Python and mirror the
executors have. All of that happens before anything is made on the target.
"""

from __future__ import annotations

import os
import platform
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

import pyspark
from pyspark import SparkConf, SparkContext

import mirror
from mirror.config.security import is_secret
from mirror.errors import ConfigError, EngineUnavailable
from mirror.observability import logs
from mirror.spark import compat

_log = logs.get("mirror.supervisor")

# --- What can be known before a JVM runs ------------------------------------------------------------------------------

_STANDALONE: Final = re.compile(r"spark://([^,/\s]+:\d+)(,[^,/\s]+:\d+)*")
_LOCAL: Final = re.compile(r"local(-cluster)?(\[.*\])?")
_SIZE: Final = re.compile(r"\d+\s*[kmgtp]?b?", re.IGNORECASE)
#: Seconds for a connection to a master.
_CONNECTED_WITHIN: Final = 5.0
_PORTS: Final = {"http": 80, "https": 443}


def check(master: str, conf: Mapping[str, str]) -> None:
    """Raise ConfigError for settings with which no Spark starts, EngineUnavailable where nothing listens."""
    for key in ("spark.driver.memory", "spark.executor.memory"):
        if (size := conf.get(key, "1g")) and not _SIZE.fullmatch(size.strip()):
            raise ConfigError(f"spark.conf: {key}: {size} is no size of memory: write 512m or 2g")
    if _LOCAL.fullmatch(master):
        return
    if _STANDALONE.fullmatch(master):
        _reach(master, master.removeprefix("spark://").split(","))
    elif master == "yarn":
        if not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
            raise ConfigError("spark.master yarn: set HADOOP_CONF_DIR or YARN_CONF_DIR to the cluster's configuration")
    elif master.startswith("k8s://"):
        if not any(key.startswith("spark.kubernetes.") and key.endswith("container.image") for key in conf):
            raise ConfigError(f"spark.master {master}: set spark.kubernetes.container.image in spark.conf")
        address = urlsplit(master.removeprefix("k8s://") if "://" in master[6:] else f"https://{master[6:]}")
        _reach(master, [f"{address.hostname}:{address.port or _PORTS.get(address.scheme, 443)}"])
    else:
        raise ConfigError(f"spark.master {master}: use local[*], spark://HOST:PORT, yarn or k8s://https://HOST:PORT")


def _reach(master: str, addresses: Iterable[str]) -> None:
    """Return when one of these accepts a connection. Raises EngineUnavailable."""
    problems = []
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECTED_WITHIN).close()
        except (OSError, OverflowError) as problem:
            problems.append(f"{address}: {problem}")
        else:
            return
    raise EngineUnavailable(f"spark.master {master}: no master listens there ({'; '.join(problems)})")


# --- What the JVM prints while it starts ------------------------------------------------------------------------------

#: What our log4j2.properties lets the client of a standalone master say as it begins to register.
_REGISTERING: Final = "StandaloneAppClient$ClientEndpoint Connecting to master"
#: Seconds in which a standalone master takes an application; Spark itself waits a minute. One of another version does
#: not understand the request, and answers nothing.
_REGISTERED_WITHIN: Final = 10.0
#: Lines that say nothing to whom Spark started for.
_NOISE: Final = (_REGISTERING, "WARNING: Using incubator modules")
#: What stands above or below the line that says why.
_HEADLINES: Final = ("Error occurred during initialization of VM", "Could not create the Java Virtual Machine")
#: Where a JVM says why it ends, the best first.
_CAUSES: Final = (
    re.compile(r'^Exception in thread "main" (?:[\w.$]+: )?(.+)$'),
    re.compile(r"^(?:Error: )?((?:Invalid|Unrecognized|Too small|Initial heap|Could not reserve|There is) .+)$"),
    re.compile(r"^(.*\S.*)$"),
)


class JvmLog:
    """What a JVM prints: kept back until `release`, then passed on."""

    def __init__(self, on_registering: Callable[[], None]) -> None:
        read, self.descriptor = os.pipe()
        self._stream = os.fdopen(read, "rb")
        self._held: list[bytes] | None = []
        self._lock, self._on_registering = threading.Lock(), on_registering
        threading.Thread(target=self._pump, daemon=True, name="mirror-jvm-log").start()

    def _pump(self) -> None:
        with self._stream as lines:
            self._read(lines)

    def _read(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if _REGISTERING.encode() in line:
                self._on_registering()
            with self._lock:
                if self._held is None:
                    _write(line)
                else:
                    self._held.append(line)

    def release(self) -> None:
        """Pass on what was kept back, and all that comes."""
        with self._lock:
            held, self._held = self._held or [], None
            for line in held:
                _write(line)

    @property
    def text(self) -> str:
        """All that was kept back."""
        with self._lock:
            return b"".join(self._held or []).decode(errors="replace")

    @property
    def cause(self) -> str:
        """The line that says why the JVM ended; empty where there is none."""
        lines = [line for line in self.text.splitlines() if not any(noise in line for noise in (*_NOISE, *_HEADLINES))]
        return next((found[1] for kind in _CAUSES for line in lines if (found := kind.match(line))), "")


def _write(line: bytes) -> None:
    if not any(noise.encode() in line for noise in _NOISE):
        with suppress(OSError):  # whoever read it is gone
            os.write(2, line)


# --- The context ------------------------------------------------------------------------------------------------------


def start(conf: SparkConf, end_jvm: Callable[[], None]) -> SparkContext:
    """Start a JVM, unless there is one, and a context with these settings. `end_jvm` kills the JVM of this process.

    Raises ConfigError for settings that Spark refuses, EngineUnavailable where Spark does not start for another reason.
    """
    if compat.has_jvm():
        return SparkContext(conf=conf)
    master = conf.get("spark.master") or ""
    check(master, dict(conf.getAll()))
    registering = _Registering(end_jvm)
    jvm_log = JvmLog(registering.begin)
    try:
        _launch(conf, jvm_log.descriptor)
        context = SparkContext(conf=conf)
        registering.end()
        _check_executors(context)
    except Exception as failure:
        registering.end()
        failure.add_note(f"The JVM printed:\n{jvm_log.text}")  # for --debug
        if isinstance(failure, ConfigError):
            raise
        raise _named(master, conf, failure, jvm_log, registering) from failure
    jvm_log.release()
    return context


def _launch(conf: SparkConf, output: int) -> None:
    """Start the JVM without the secrets among the settings: PySpark writes all that it is given into the JVM's command
    line, which every user of the machine can read. SparkContext then sets them over the gateway's own connection.
    """
    public = SparkConf()
    for key, value in conf.getAll():
        if not is_secret(("spark", "conf", key)):
            public.set(key, value)
    try:
        compat.launch_jvm(public, output)
    finally:
        os.close(output)


class _Registering:
    """Ends a JVM that a standalone master does not take in time."""

    def __init__(self, end_jvm: Callable[[], None]) -> None:
        self._end_jvm = end_jvm
        self._timer: threading.Timer | None = None
        self.has_failed = False

    def begin(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(_REGISTERED_WITHIN, self._give_up)
            self._timer.daemon = True
            self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_up(self) -> None:
        self.has_failed = True
        self._end_jvm()


def _named(
    master: str, conf: SparkConf, failure: Exception, jvm_log: JvmLog, registering: _Registering
) -> ConfigError | EngineUnavailable:
    """Return the error that says in one line why Spark did not start."""
    if registering.has_failed or "InvalidClassException" in jvm_log.text:
        own, other = pyspark.__version__, _version_of(master, conf)
        if other and other != own:
            return ConfigError(
                f"spark.master {master} runs Spark {other}, and the mirror has PySpark {own}: install pyspark=={other}"
            )
        return EngineUnavailable(
            f"spark.master {master} did not take the mirror within {_REGISTERED_WITHIN:.0f} s: is it a master, and does"
            f" it run Spark {own}, as the mirror does?"
        )
    text = str(failure)
    if found := re.search(r"(?:IllegalArgumentException|NumberFormatException|SparkException): (.+)", text):
        return ConfigError(f"Spark refuses its settings: {found[1].strip()}")
    cause = jvm_log.cause if "JAVA_GATEWAY_EXITED" in text or "py4j" in text.lower() else ""
    if _CAUSES[1].match(cause):
        return ConfigError(f"Spark's JVM refuses its settings: {cause}")
    words = cause or text.partition("\n")[0] or type(failure).__name__
    return EngineUnavailable(f"Spark does not start (spark.master {master}): {words}")


def _version_of(master: str, conf: SparkConf) -> str:
    """Return the version that a standalone master's page names; empty where it is not found."""
    host = urlsplit(master.partition(",")[0]).hostname
    address = f"http://{host}:{conf.get('spark.master.ui.port') or 8080}/"
    with suppress(OSError, ValueError), urllib.request.urlopen(address, timeout=_CONNECTED_WITHIN) as page:
        text = page.read(1 << 20).decode(errors="replace")
        found = re.search(r'class="version[^"]*"[^>]*>\s*([\w.-]+)', text)
        return found[1] if found and master.partition(",")[0] in text else ""
    return ""


# --- What the executors have ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SparkVersions:
    """What must be the same on the driver and on executors."""

    spark: str  #: PySpark, in full
    python: str  #: major and minor
    mirror: str  #: in full

    @classmethod
    def own(cls) -> SparkVersions:
        """Return those of this process."""
        return cls(pyspark.__version__, ".".join(platform.python_version_tuple()[:2]), mirror.__version__)


def _asked(rows: Iterable[int]) -> Iterator[SparkVersions]:
    for _ in rows:
        yield SparkVersions.own()


def _check_executors(context: SparkContext) -> None:
    """Raise ConfigError where the executors of a cluster have other versions, or cannot run the mirror at all.

    Waits for the first executor, which may take minutes.
    """
    if str(context.master).startswith("local"):
        return
    waiting = threading.Timer(
        15.0, _log.warning, ("spark_waits",), {"master": context.master, "text": "no executor has begun yet"}
    )
    waiting.daemon = True
    waiting.start()
    try:
        (found,) = compat.rows_of(context, [0]).mapPartitions(_asked).collect()
    except Exception as failure:
        words = _python_words(str(failure))
        raise ConfigError(f"executors of {context.master} cannot run the mirror: {words}") from failure
    finally:
        waiting.cancel()
    own = SparkVersions.own()
    for name in SparkVersions.__slots__:
        if (there := getattr(found, name)) != (here := getattr(own, name)):
            raise ConfigError(f"executors of {context.master} have {name} {there}, and the driver has {here}")


def _python_words(text: str) -> str:
    """Return what Spark raises about Python on an executor in one sentence."""
    if found := re.search(r'Cannot run program "([^"]+)"[^:]*: (?:error=\d+, )?(.+)', text):
        return f"{found[1]}: {found[2].strip()} (spark.pyspark.python)"
    if "from mirror.spark.daemon's stdout" in text:
        return "their Python cannot import it, as their stderr says: install it on every worker (docs/clusters.md)"
    errors = re.findall(r"^\s*(?:[\w.]+(?:Error|Exception): )(.+)$|(No module named .+)$", text, re.MULTILINE)
    return next((words for pair in reversed(errors) for words in pair if words), text.strip().partition("\n")[0])[:300]
