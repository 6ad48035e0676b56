"""From an `mm2.properties` file to one configuration for each of its flows, with what was not translated and why.

What is written is checked by the configuration's own rules. A value that these refuse fails the import: a default in
its place might mirror other topics, follow other groups, or reach another cluster.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import Final

from mirror.config.reading import check
from mirror.config.yaml_tree import REFERENCE, YamlTree, key_of, line_of
from mirror.errors import ConfigError
from mirror.mm2.clients import add_cluster
from mirror.mm2.flows import add_flow
from mirror.mm2.properties import BadProperties, Draft, Note, Property, PropertyFile, Scope, Translator, Variable
from mirror.names import OWN_PREFIX, is_legal, is_plain

# --- Why a key of MirrorMaker's has no equivalent here, in one line each ----------------------------------------------

#: A pattern for keys, without what says where they hold, and below it the reason. The first that matches holds.
_REASONS: Final = r"""
exactly\.once\..*|transaction(al)?\..*
    not needed: every record is mirrored exactly once, without transactions
tasks\.max
    tasks are planned from the partitions and their leaders; spark.tasks fixes their number
replication\.factor
    a topic is created with the source's number of replicas, or as many as the target has brokers
(offset-syncs|checkpoints|heartbeats)\.topic\..*|offset\.lag\.max|emit\.offset-syncs\..*
    MirrorMaker's own topics are not used: all state is in mirror.<flow>.offsets on the target
replication\.policy\.internal\..*
    MirrorMaker's own topics are not used: all state is in mirror.<flow>.offsets on the target
emit\.checkpoints\..*
    groups follow exactly, without checkpoints: see groups
(emit\.heartbeats|heartbeats\.replication)\..*
    `mirror status` and the metrics show whether the flow lives
refresh\.groups\..*
    groups are looked for at each check: groups.interval_s
refresh\.topics\.enabled
    new topics are always looked for
use\.(defaults\.from|incremental\.alter\.configs)
    docs/topics.md lists which of a topic's settings follow; `mirror plan` shows them
forwarding\.admin\.class
    a class of your own cannot be run; topics are created through Kafka's protocol
(key|value|header)\.converter.*|(transforms|predicates|errors\.).*
    records are not decoded: batches are copied as they are
config\.providers.*|config\.action\.reload
    references became ${env:NAME} or ${file:PATH}, which need no provider
compression\..*
    batches keep their codec; topics.recompress says who compresses anew where the target topic has another
linger\.ms|batch\.size|partitioner\..*
    batches stay as the source's producers made them; topics.coalesce_bytes joins tiny ones
max\.(request\.size|partition\.fetch\.bytes|poll\..*|block\.ms)|buffer\.memory|fetch\..*
    fetches and what waits to be written are sized by limits.memory_mb
acks|enable\.idempotence|max\.in\.flight\..*|delivery\.timeout\.ms
    not needed: every batch is acknowledged by all in-sync replicas, in order, and each once
retries|(retry|reconnect)\.backoff.*|(request\.|default\.api\.|admin\.|(consumer\.)?poll\.)?timeout\.ms
    the mirror asks again for as long as it runs, at most seconds apart
isolation\.level
    always read_committed: aborted transactions are not mirrored
auto\.offset\.reset
    topics.start says where a topic's copy begins
(enable\.)?auto\.commit.*|group\.(id|instance\.id|protocol)|partition\.assignment\.strategy
    no consumer group is used: the target's log is the position
(metadata|connections|socket\.connection|send\.buffer|receive\.buffer|client\.(dns|rack)|security\.providers).*
    the mirror's connections choose that themselves
client\.id|bootstrap\.servers|security\.protocol
    holds with a cluster's name before it
metrics?\..*|auto\.include\.jmx\.reporter|add\.source\.alias\.to\.metrics|interceptor\.classes|enable\.metrics\.push
    see metrics: figures are Prometheus's
dedicated\.mode\..*|enable\.internal\.rest|listeners.*|(rest|advertised|admin\.listeners|access\.control)\..*
    there is no REST server; `mirror status` shows where everything stands
(offset|config|status)\.(storage|flush)\..*|(session|heartbeat|rebalance)\..*|scheduled\.rebalance\..*|plugin\..*
    Kafka Connect is not used
connector\..*|name|(task|worker|topic\.creation|offsets\.storage)\..*
    Kafka Connect is not used
ssl\.(protocol|enabled\.protocols|cipher\.suites|provider|.*algorithm|secure\.random.*|engine\.factory.*)
    the TLS library's own choice holds: TLS 1.2 or newer, and its ciphers
ssl\.(trust|key)store\.password
    a PEM file has no store password
ssl\.truststore\.certificates
    write the certificates into a file, and its name into ssl.ca.location
ssl\.keystore\.(key|certificate\.chain)
    write it into a file (chmod 600), and its name into ssl.key.location or ssl.certificate.location
ssl\..*
    has no effect with the cluster's security.protocol, or without the store it belongs to
sasl\..*
    has no effect with the cluster's security.protocol, or is for Java's login classes, which are not used
""".strip().splitlines()
UNKNOWN: Final = "unknown, so nothing was made of it"


def reason(name: str) -> str:
    """Why a key that was not used was not, by its name without alias, flow and client."""
    found = (why for pattern, why in zip(_REASONS[::2], _REASONS[1::2], strict=True) if re.fullmatch(pattern, name))
    return next(found, UNKNOWN).strip()


# --- A draft as YAML, with what was not translated in comments --------------------------------------------------------

_WIDTH = 120


def text_of(draft: Draft, origin: str) -> str:
    """The file: what it is from, the variables it needs, sections, and the keys that have no equivalent."""
    flow = "->".join(draft.scope.names.values())
    lines = [*_comment(f"The flow {flow} of {origin}, translated by `mirror import-mm2`. Check it with `mirror plan`.")]
    variables = draft.translator.variables.values()
    lines += _listed("Set these variables before it starts:", [f"{one.name}: {one.holds}" for one in variables])
    section: str | int | None = None
    for where, value in draft.values.items():
        if len(where) == 2 and where[0] != section:
            section = where[0]
            lines += ["", f"{section}:"]
        indent = "  " * (len(where) - 1)
        if remark := draft.remarks.get(where):
            lines += _comment(remark, indent)
        lines.append(f"{indent}{key_of(str(where[-1]))}: {line_of(value)}")
    if notes := draft.scope.notes:
        lines += ["", *_listed("Not translated, by line:", map(str, notes))]
    return "\n".join(lines) + "\n"


def _listed(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield a comment of a title and lines below it; nothing where there are none."""
    for number, line in enumerate(lines):
        yield from _comment(title) if not number else ()
        yield from _comment(f"  {line}")


def _comment(text: str, indent: str = "") -> list[str]:
    """Return the lines of a comment, in characters that YAML takes."""
    first, rest = f"{indent}# ", f"{indent}#   "
    return wrap(
        printable(text),
        _WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def printable(text: str) -> str:
    """With escapes for all that is not a plain character: a key may hold anything."""
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


# --- From a `mm2.properties` to one configuration of ours for each of its flows ---------------------------------------


@dataclass(frozen=True, slots=True)
class Imported:
    """One flow: the name of its file, its text, the variables that it needs, and what was not translated."""

    name: str
    text: str
    variables: tuple[Variable, ...]
    notes: tuple[Note, ...]


def imported(data: bytes, origin: str, folder: Path = Path()) -> list[Imported]:
    """All enabled flows of a property file called `origin`; files are looked for from `folder` on.

    Raises ConfigError for what is no such file, has no enabled flow, or has one that cannot be mirrored as it is.
    """
    try:
        file = PropertyFile(data)
        if not file.clusters:
            raise ConfigError(f"{origin}: names no clusters: is it a configuration of MirrorMaker 2?")
        if not file.flows:
            names = printable(", ".join(file.clusters))
            raise ConfigError(f"{origin}: enables no flow between {names}: set A->B.enabled = true")
        found = [_flow(file, source, target, origin, folder) for source, target in file.flows]
    except BadProperties as problem:
        raise ConfigError(f"{origin}:{problem.line}: {problem}") from problem
    flows = [one.name for one in found]
    if twice := next((name for name in flows if flows.count(name) > 1), None):
        raise ConfigError(f"{origin}: two flows would both be called {twice}: rename a cluster")
    return found


def strays(data: bytes) -> list[Note]:
    """Keys of flows that are not enabled, and of clusters in no flow: part of no file."""
    file = PropertyFile(data)
    lone = set(file.clusters).difference(*file.flows)
    notes = []
    for property_ in file.properties:
        if "->" in property_.key:
            if not any(property_.key.startswith(f"{source}->{target}.") for source, target in file.flows):
                notes.append(Note(property_.key, property_.line, "its flow is not enabled"))
        elif any(property_.key.startswith(f"{alias}.") for alias in lone):
            notes.append(Note(property_.key, property_.line, "its cluster is in no enabled flow"))
    return notes


def _flow(file: PropertyFile, source: str, target: str, origin: str, folder: Path) -> Imported:
    values = {key: property_.value for key, property_ in file.last.items()}
    draft = Draft(Scope(file, source, target), Translator(values))
    name = f"{_legal(source)}-to-{_legal(target)}"
    draft.put(("name",), name)
    add_cluster(draft, "source", _legal(source))
    add_cluster(draft, "target", _legal(target))
    add_flow(draft)
    for key in ("enabled", "clusters"):
        draft.scope.find(key)
    _refuse_invalid(draft, origin, folder)
    _explain_rest(draft, file.properties)
    return Imported(
        name, text_of(draft, printable(origin)), tuple(draft.translator.variables.values()), tuple(draft.scope.notes)
    )


def _legal(alias: str) -> str:
    return alias if is_legal(alias) else re.sub(r"[^A-Za-z0-9._-]", "-", alias)[:100].strip(".") or "cluster"


def _explain_rest(draft: Draft, properties: Sequence[Property]) -> None:
    seen: dict[str, int] = {}
    for property_ in properties:
        if property_.key in seen:
            draft.scope.notes.append(
                Note(property_.key, seen[property_.key], f"given again on line {property_.line}, which holds")
            )
        seen[property_.key] = property_.line
    for one, name in list(draft.scope.rest()):
        draft.scope.explain(one, reason(name))
    draft.scope.notes.sort(key=lambda note: (note.line, note.key))


def _refuse_invalid(draft: Draft, origin: str, folder: Path) -> None:
    """Raise ConfigError for the first value that the configuration's rules refuse, unless it is of a variable that is
    not set here.
    """
    tree = YamlTree(text_of(draft, printable(origin)), folder)
    _, problems = check(tree, folder)
    own = (one for one in draft.values["topics", "include"] if is_plain(one) and one.startswith(OWN_PREFIX))
    why = "no topic whose name begins with `mirror.` is mirrored, since mirrors keep such for themselves"
    problems += [(("topics", "include"), f"{one}: {why}") for one in own]
    for where, what in problems:
        references = REFERENCE.findall(tree.raw.get(where, ""))
        if any(name.startswith("env:") and name.removeprefix("env:") not in os.environ for name in references):
            continue
        found = next((draft.origins[where[:size]] for size in (3, 2, 1) if where[:size] in draft.origins), None)
        place = f"{origin}:{found.line}: {printable(found.key)}" if found else f"{origin}: {'.'.join(map(str, where))}"
        raise ConfigError(f"{place}: cannot be taken over: {what}")
