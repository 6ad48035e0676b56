"""Why a key of MirrorMaker's has no equivalent here, in one line each."""

from __future__ import annotations

import re
from typing import Final

#: Reason -> patterns for the keys, without what tells where they hold. The first that matches.
_TABLE: Final[dict[str, tuple[str, ...]]] = {
    "not needed: every record is mirrored exactly once, without transactions": (
        r"exactly\.once\..*",
        r"transaction(al)?\..*",
    ),
    "tasks are planned from the partitions and their leaders; spark.lanes fixes their number": (r"tasks\.max",),
    "a topic is created with the source's number of replicas, or as many as the target has brokers": (
        r"replication\.factor",
    ),
    "MirrorMaker's own topics are not used: all state is in mirror.<flow>.offsets on the target": (
        r"(offset-syncs|checkpoints|heartbeats)\.topic\..*",
        r"offset\.lag\.max",
        r"emit\.offset-syncs\..*",
        r"replication\.policy\.internal\..*",
    ),
    "groups follow exactly, without checkpoints: see groups": (r"emit\.checkpoints\..*",),
    "`mirror status` and the metrics tell whether the flow lives": (r"(emit\.heartbeats|heartbeats\.replication)\..*",),
    "groups are looked for at each look: groups.interval_s": (r"refresh\.groups\..*",),
    "new topics are always looked for": (r"refresh\.topics\.enabled",),
    "a filter of your own cannot be run; check include and exclude": (
        r"(topic|group|config\.property)\.filter\.class",
    ),
    "docs/topics.md lists which of a topic's settings follow; `mirror plan` shows them": (
        r"use\.(defaults\.from|incremental\.alter\.configs)",
    ),
    "a class of your own cannot be run; topics are created through Kafka's protocol": (r"forwarding\.admin\.class",),
    "records are not decoded: batches are copied as they are": (
        r"(key|value|header)\.converter.*",
        r"(transforms|predicates|errors\.).*",
    ),
    "references became ${env:NAME} or ${file:PATH}, which need no provider": (
        r"config\.providers.*",
        r"config\.action\.reload",
    ),
    "batches keep their codec; topics.recompress says who compresses anew where the target topic has another": (
        r"compression\..*",
    ),
    "batches stay as the source's producers made them; topics.coalesce_bytes joins tiny ones": (
        r"linger\.ms",
        r"batch\.size",
        r"partitioner\..*",
    ),
    "fetches and what waits to be written are sized by limits.memory_mb": (
        r"max\.(request\.size|partition\.fetch\.bytes|poll\..*|block\.ms)",
        r"buffer\.memory",
        r"fetch\..*",
    ),
    "not needed: every batch is acknowledged by all in-sync replicas, in order, and each once": (
        r"acks|enable\.idempotence|max\.in\.flight\..*|delivery\.timeout\.ms",
    ),
    "the mirror asks again for as long as it runs, at most seconds apart": (
        r"retries|(retry|reconnect)\.backoff.*",
        r"(request\.|default\.api\.|admin\.|(consumer\.)?poll\.)?timeout\.ms",
    ),
    "always read_committed: aborted transactions are not mirrored": (r"isolation\.level",),
    "topics.start says where a topic's copy begins": (r"auto\.offset\.reset",),
    "no consumer group is used: the target's log is the position": (
        r"(enable\.)?auto\.commit.*",
        r"group\.(id|instance\.id|protocol)",
        r"partition\.assignment\.strategy",
    ),
    "the mirror's connections choose that themselves": (
        r"(metadata|connections|socket\.connection|send\.buffer|receive\.buffer|client\.(dns|rack)|security\.providers).*",
    ),
    "holds with a cluster's name before it": (r"client\.id|bootstrap\.servers|security\.protocol",),
    "see metrics: figures are Prometheus's": (
        r"metrics?\..*|auto\.include\.jmx\.reporter|add\.source\.alias\.to\.metrics",
        r"interceptor\.classes|enable\.metrics\.push",
    ),
    "there is no REST server; `mirror status` tells where everything stands": (
        r"dedicated\.mode\..*|enable\.internal\.rest",
        r"listeners.*|(rest|advertised|admin\.listeners|access\.control)\..*",
    ),
    "Kafka Connect is not used": (
        r"(offset|config|status)\.(storage|flush)\..*",
        r"(session|heartbeat|rebalance)\..*|scheduled\.rebalance\..*",
        r"plugin\..*|connector\..*|name|(task|worker|topic\.creation|offsets\.storage)\..*",
    ),
    "the TLS library's own choice holds: TLS 1.2 or newer, and its ciphers": (
        r"ssl\.(protocol|enabled\.protocols|cipher\.suites|provider|.*algorithm|secure\.random.*|engine\.factory.*)",
    ),
    "has no effect without the store it belongs to": (r"ssl\..*",),
    "Java's login classes are not used": (r"sasl\..*",),
}
UNKNOWN: Final = "unknown, so nothing was made of it"


def reason(name: str) -> str:
    """Why a key that was not used was not, by its name without alias, flow and client."""
    found = (why for why, patterns in _TABLE.items() if any(re.fullmatch(pattern, name) for pattern in patterns))
    return next(found, UNKNOWN)
