"""Whether a batch in the target is what the source holds at its offsets.

Batches that were passed on are compared by header and the bytes of their records. Where that does not do, because one
of them was rewritten, records are compared by offset; a record that only the target has is no difference where the
source shows a hole, since compaction may have taken it away after it was mirrored: out of a batch, or with all of its
batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mirror.errors import BadRecords
from mirror.records.header import APPEND_TIME, ProducerState, RawBatch, is_a_mirrors, same_records

if TYPE_CHECKING:
    from mirror.records.columns import Records

_COMPARED = ("magic", "codec", "base_offset", "count", "last_offset_delta", "base_timestamp", "max_timestamp")


def is_our_padding(raw: RawBatch, own: ProducerState) -> bool:
    """Whether a batch is padding by the producer of `own`."""
    return own.is_kin(raw.header.producer_id) and is_a_mirrors_padding(raw)


def is_a_mirrors_padding(raw: RawBatch) -> bool:
    """Whether a batch is padding, by whatever flow. The header distinguishes most batches from it: to look inside loads
    the compiler, for which a task stands still a second or more.
    """
    header = raw.header
    untimed = header.max_timestamp < 0 or header.attributes & APPEND_TIME
    if not (untimed and is_a_mirrors(header.producer_id)):
        return False
    from mirror.records.rewrite import is_padding  # noqa: PLC0415 -- see above

    return is_padding(raw)


def padding_detail(padding: RawBatch) -> str:
    """What whoever reads a source waits for that begins with another mirror's padding."""
    what = f"offset {padding.header.base_offset} of the source is padding of another mirror"
    return f"{what}, whose copy the source is, and which deletes it when the copy begins where it should"


def marker_difference(first: int, end: int, raw: RawBatch | None) -> str:
    """What is wrong with markers of ours from offset `first` to before `end`, or the empty string: the source must have
    no record there.

    `raw` is a batch of the source that holds some of these offsets, or the next one; None where there is none, or an
    aborted one.
    """
    if raw is None or raw.header.is_control:
        return ""
    its = raw.header
    if its.last_offset < first or (its.magic == 2 and (end <= its.base_offset or not its.count)):
        return ""
    if its.magic == 2 and its.is_dense:
        return "the source has a record where the target has a marker"
    from mirror.records.rewrite import portions  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    try:
        there = any(((first <= part.offsets) & (part.offsets < end)).any() for part in portions(raw))
    except BadRecords as damage:
        return f"the source's batch cannot be read: {damage.detail}"
    return "the source has a record where the target has a marker" if there else ""


def batch_difference(batch: RawBatch, raw: RawBatch | None, *, may_be_rewritten: bool) -> str:
    """What differs between a batch of the target and the source's batch at its offset or the next one, or the empty
    string.
    """
    if raw is None:
        return "the source has no batch there"
    mine, its = batch.header, raw.header
    if may_be_rewritten and its.magic == 2 and its.base_offset > mine.last_offset:
        return ""  # the source has a hole there
    if may_be_rewritten and its.is_control and not (mine.is_control or mine.is_dense):
        return Joined(batch).difference(raw)  # as a mirror fills the holes of a batch, which begins with one
    if mine.is_control or its.is_control:
        return "one of them is a control batch"
    names = (
        _COMPARED[:-1] if mine.attributes & APPEND_TIME else _COMPARED
    )  # an append-time target has a clock of its own
    unlike = next((name for name in names if getattr(mine, name) != getattr(its, name)), "")
    if not unlike and same_records(batch, raw):
        return ""
    if may_be_rewritten:
        return _records_difference(batch, raw)
    if not unlike:
        return "the records"
    return f"{unlike.replace('_', ' ')} {getattr(mine, unlike)} against {getattr(its, unlike)}"


def shows_create_times(batch: RawBatch, raw: RawBatch) -> bool:
    """Whether a batch of the target is one that the source's broker gave its own time, without that: readers see the
    producers' times.
    """
    mine, its = batch.header, raw.header
    is_cleared = its.attributes & APPEND_TIME and not mine.attributes & APPEND_TIME
    return bool(is_cleared) and mine.base_timestamp == its.base_timestamp and same_records(batch, raw)


class Joined:
    """A batch of ours, to be compared with one after another of the source's batches that it was made of."""

    def __init__(self, raw: RawBatch) -> None:
        """It is decoded once. Raises BadRecords."""
        from mirror.records.rewrite import portions  # noqa: PLC0415 -- loads the compiler, and is seldom needed

        self._header, self._portions = raw.header, list(portions(raw))

    def difference(self, raw: RawBatch) -> str:
        """What differs between a batch of the source and the records of ours at its offsets, or the empty string."""
        from mirror.records.rewrite import portions  # noqa: PLC0415 -- see above

        if raw.header.is_control:
            at = raw.header.base_offset  # a mirror fills the holes that a cleaner left in a batch with such
            is_there = any((portion.offsets == at).any() for portion in self._portions)
            return f"the source has a control batch at offset {at}" if is_there else ""
        if not raw.header.count:
            return ""
        timed = not self._header.attributes & APPEND_TIME
        try:
            for its in portions(raw):
                for records in self._portions:
                    first, last = records.offsets.searchsorted((its.offsets[0], its.offsets[-1] + 1))
                    if difference := records_difference(records.rows(int(first), int(last)), its, timed=timed):
                        return difference
        except BadRecords as damage:
            return f"the source's batch at offset {raw.header.base_offset} cannot be read: {damage.detail}"
        return ""


def _records_difference(batch: RawBatch, raw: RawBatch) -> str:
    from mirror.records.rewrite import portions  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    timed = not batch.header.attributes & APPEND_TIME
    try:
        pairs = ((portion, its) for portion in portions(batch) for its in portions(raw))
        return next(filter(None, (records_difference(records, its, timed=timed) for records, its in pairs)), "")
    except BadRecords as damage:
        return f"one of them cannot be read: {damage.detail}"


def records_difference(ours: Records, records: Records, *, timed: bool) -> str:
    """What differs between records at the same offsets, or the empty string; those on one side only do not count.
    Timestamps do where they are `timed`: an append-time target has a clock of its own.
    """
    from mirror.records.columns import headers, key, value  # noqa: PLC0415 -- loads the compiler, and is seldom needed

    at = {int(offset): index for index, offset in enumerate(records.offsets)}
    for index, offset in enumerate(map(int, ours.offsets)):
        match = at.get(offset)
        if match is None:  # a hole, before the source's batch or in it, or a record of its next batch
            continue
        for name, field in (("key", key), ("value", value), ("headers", headers)):
            if field(ours, index) != field(records, match):
                return f"the {name} of the record at offset {offset}"
        if timed and ours.timestamps[index] != records.timestamps[match]:
            return f"the timestamp of the record at offset {offset}"
    return ""
