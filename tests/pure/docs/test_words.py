"""One word for one thing, and Kafka's, Spark's or MirrorMaker's where they have one: retired words stay retired."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
#: Retired names of classes -> the word that is used in their place.
NAMES = {
    "Exposure": "PartitionRpo",
    "Figures": "PartitionStatus",
    "Glance": "TransactionScan",
    "Hindrance": "Blocker",
    "Keeper": "PartitionTask",
    "TaskFigures": "TaskStatus",
    "Ledger": "OffsetMap",
    "Ledgers": "OffsetMapStore",
    "LOOK_SECONDS": "POLL_SECONDS",
    "Look": "SyncResult, or NewPlan",
    "Lookout": "TopicWatcher",
    "MarkAddress": "ControlAddress",
    "Outgoing": "PendingBatch",
    "Receipt": "TaskResult",
    "Renewal": "Replanner",
    "RunIndex": "OffsetRangeIndex",
    "Runs": "OffsetRanges",
    "Shelf": "FileCluster",
    "Sink": "PartitionWriter",
    "Stamp": "ProducerState",
    "StopMark": "ControlServer",
    "Stretch": "OffsetSpan",
    "Tally": "PartitionCounters",
    "Tidings": "JournalState",
    "Wish": "InspectOptions",
    "doubted": "unconfirmed",
    "is_vouched": "is_verified",
    "lands": "target_offset",
    "look": "refresh, replan, poll, read or check",
    "lookout": "topic_watcher",
    "settled_end": "replicated_end",
    "sink": "partition_writer, or buffer: a sink is Spark's",
    "sinks": "partition_writers",
    "twin": "source_batch",
    "unsettled": "in_doubt",
    "upto": "until: the journal and the plans of re-keying alone keep it as a key",
    "vouched": "verified, or confirmed where a person does",
}
#: Retired states, wherever they stand: in code, metrics, alerts, dashboards or pages.
STATES = {"ALIGNING": "PADDING", "CONTENDED": "FENCED", "DENIED": "UNAUTHORIZED", "WAITING": "UNAVAILABLE"}
_RETIRED = re.compile(rf"\b_*(?:{'|'.join(NAMES)})\b")
#: Retired words, wherever they stand, as a part of a name, too.
WORDS = {
    "keeper": "partition task",
    "lane": "task",
    "lanes": "tasks",
    "ledger": "offset map",
    "ledgers": "offset maps",
    "patience": "timeout",
    "receipt": "result",
    "receipts": "results",
    "tally": "counters",
    "telling": "reporting",
    "tells": "says, shows, names or reports",
    "tidings": "journal state",
    "told": "reported, logged, named or a field's name",
}
#: What others read keeps its name: the field of a log's event.
_KEPT = re.compile(r'"flow_failed_over", .*told=')
_PAGES = (
    *("*.md", "docs/*.md", "mirror/**/*.py", "tests/**/*.py", "scripts/*"),
    *("ops/**/*.yml", "ops/**/*.json", "configs/**/*"),
)


def names(source: str) -> Iterator[tuple[int, str]]:
    """Retired names in a module, with their lines."""
    if not _RETIRED.search(source):  # to take a module to tokens takes long
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME and token.string.lstrip("_") in NAMES:
            yield token.start[0], token.string


_WORDS = re.compile(rf"\b(?:{'|'.join(STATES)})\b|(?<![a-zA-Z])(?i:{'|'.join(WORDS)})(?![a-zA-Z])")


def words(text: str) -> Iterator[tuple[int, str]]:
    """Retired states and words in a page, with their lines."""
    for number, line in enumerate(text.splitlines(), 1):
        yield from ((number, found) for found in _WORDS.findall(line))


def test_no_name_is_a_retired_one() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name} is {NAMES[name.lstrip('_')]}"
        for folder in ("mirror", "tests", "fuzz")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, name in names(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize("pattern", _PAGES)
def test_no_word_is_a_retired_one(pattern: str) -> None:
    pages = [path for path in sorted(ROOT.glob(pattern)) if path.is_file() and path.name != Path(__file__).name]
    assert pages
    found = [
        f"{path.relative_to(ROOT)}:{line}: {word} is {STATES.get(word) or WORDS[word.lower()]}"
        for path in pages
        for line, word in words(_KEPT.sub("", path.read_text(encoding="utf-8")))
    ]
    assert found == []


def test_retired_words_are_found() -> None:
    assert [*names("class _Keeper:\n    tally: Tally")] == [(1, "_Keeper"), (2, "Tally")]
    assert [*words("a\nis WAITING, was DENIED; ACCESS_DENIED is not")] == [(2, "WAITING"), (2, "DENIED")]
    assert [*words("a_lane\nLANES; of planes")] == [(1, "lane"), (2, "LANES")]
