"""The adversary: a sample of its schedules on real brokers, and what it is made of.

`python -m tests.adversary --schedules 500 --seed 1` hunts on; `make test-long AREA=adversary` does
more, and takes each mend of a fault out of a copy of the mirror to see it found again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from adversary.hunting import Hunt
from adversary.judging import Allowed, differences, vanished
from adversary.logs import Log, Record
from adversary.mends import REKEYED, Mend, mends, without
from adversary.operations import DISTURBING, REPERTOIRES, WEIGHTS, Op, schedule
from adversary.play import OPERATIONS
from adversary.rekeyed.scripts import Turn, session
from adversary.shrinking import shrunk


def _is_slow(seed: int, repertoire: str) -> bool:
    """Restarts a broker, has a second mirror wait until it may take over, or is long."""
    whole = schedule(seed, repertoire)
    return whole.disturbs or len(whole.operations) > 13 or any(op.name == "twin" for op in whole.operations)


#: By repertoire: printed with each schedule, and played by their seeds alone.
SAMPLE = {
    name: [seed for seed in range(2000, 2200) if not _is_slow(seed, name)][:count]
    for name, count in (
        ("clusters", 12),
        ("disks", 5),
        ("settings", 4),
        ("around", 4),
        ("ways", 3),
        ("late", 2),
        ("asleep", 3),
    )
}
AT_ONCE = 4

# --- what it is made of (pure) ----------------------------------------------------------------------------------------


def test_a_seed_is_a_schedule() -> None:
    assert schedule(7) == schedule(7)
    assert schedule(7) != schedule(8)


def test_every_operation_is_drawn_and_played() -> None:
    assert {op.name for seed in range(300) for op in schedule(seed).operations} == set(WEIGHTS)
    drawn = {op.name for seed in range(300) for name in REPERTOIRES for op in schedule(seed, name).operations}
    assert drawn == OPERATIONS
    assert drawn >= DISTURBING


def test_a_schedule_is_shrunk_to_what_shows_it() -> None:
    tries: list[Sequence[int]] = []

    def shows(places: Sequence[int]) -> bool:
        tries.append(places)
        return {3, 11} <= set(places)

    assert shrunk(range(16), shows) == [3, 11]
    assert len(tries) < 60


def _log(*values: str, start: int = 0, first: int = 0) -> Log:
    held = {first + number: Record(number, None, value.encode(), ()) for number, value in enumerate(values)}
    end = first + len(values)
    return Log(start, end, end, {offset: one for offset, one in held.items() if offset >= start})


@pytest.mark.parametrize(
    ("copy", "kinds"),
    [
        (_log("a", "b", "c"), []),
        (_log("a", "b"), ["I2 the copy ends early", "I2 records are missing"]),
        (_log("a", "x", "c"), ["I2 records are others"]),
        (_log("a", "b", "c", "d"), ["I2 the copy ends late", "I2 records of nobody"]),
        (_log("a", "b", "c", start=2), ["I2 the copy begins late"]),
    ],
)
def test_copies_are_judged(copy: Log, kinds: list[str]) -> None:
    assert [one.kind for one in differences("t-0", _log("a", "b", "c"), copy, Allowed())] == kinds


def test_what_the_source_held_once_is_distinguished_from_what_it_never_held() -> None:
    source, history = _log("c", "d", first=2), {0: Record(0, None, b"a", ()), 1: Record(1, None, b"b", ())}
    source = Log(2, 4, 4, {2: Record(2, None, b"c", ()), 3: Record(3, None, b"d", ())})
    assert not [*differences("t-0", source, _log("a", "b", "c", "d"), Allowed(history=history))]
    assert [one.what for one in differences("t-0", source, _log("a", "x", "c", "d"), Allowed(history=history))] == [
        "records are others"
    ]


def test_what_the_source_held_before_it_was_cut_back_may_stand_in_a_copy_where_the_source_deleted_it() -> None:
    one, other, last = Record(0, None, b"x", ()), Record(0, None, b"y", ()), Record(1, None, b"z", ())
    source, copy = Log(1, 2, 2, {1: last}), Log(0, 2, 2, {0: one, 1: last})
    assert not [*differences("t-0", source, copy, Allowed(history={0: other}, former={0: [one]}))]
    found = [each.what for each in differences("t-0", source, copy, Allowed(history={0: other}))]
    assert found == ["records are others"]


def test_what_expired_in_the_copy_must_have_been_there() -> None:
    source, copy = _log("a", "b", "c"), _log("a", "b", "c", start=2)
    seen = {offset: [one] for offset, one in source.records.items()}
    assert not [*differences("t-0", source, copy, Allowed(start=2, copied=seen))]
    for less in (seen | {1: [Record(1, None, b"x", ())]}, {0: seen[0]}):
        found = [str(one) for one in differences("t-0", source, copy, Allowed(start=2, copied=less))]
        assert found == ["I2 records were never copied: t-0: 1 at offsets 1 to 1"]
    assert not [*differences("t-0", source, copy, Allowed(start=None, copied={}))]


def test_what_vanishes_is_found() -> None:
    before = _log("a", "b", "c", "d")
    assert [one.what for one in vanished("t-0", before, _log("a", "b"), 0, None)] == [
        "a log got shorter",
        "records are gone",
    ]
    assert [one.what for one in vanished("t-0", before, _log("a", "b", "c", "d", start=2), 0, None)] == [
        "records were deleted"
    ]
    assert not [*vanished("t-0", before, _log("a", "b", "c", "d", start=2), 2, None)]
    assert not [*vanished("t-0", _log(), _log(start=2, first=2), 0, None)], "there was nothing"
    assert not [*vanished("t-0", before, _log("a", "b"), 0, 2)]


@pytest.mark.parametrize("mend", mends(), ids=lambda mend: mend.name)
def test_the_patch_that_takes_a_mend_out_still_fits(mend: Mend) -> None:
    with without(mend.name) as folder:
        assert (folder / "mirror" / "cli.py").exists()


@pytest.mark.parametrize("mend", [mend for mend in mends() if mend.only], ids=lambda mend: mend.name)
def test_what_a_mend_is_missed_in_is_what_its_seed_means(mend: Mend) -> None:
    assert mend.schedules == 1
    if mend.repertoire == REKEYED:
        played: Sequence[Turn | Op] = session(mend.seed).part(mend.only, 0).turns
    else:
        played = schedule(mend.seed, mend.repertoire).part(mend.only).operations
    assert "; ".join(map(str, played)) == mend.plays, (
        "seeds mean other schedules by now: choose another one that plays this"
    )


#: Whose schedules are played in a few seconds.
QUICK = {"verify_names_what_is_not_whole", "groups_stay_above_the_log_start", "foreign_topics_are_refused"}


# --- on brokers -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hunt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hunt]:
    with Hunt(tmp_path_factory.mktemp("adversary")) as found:
        yield found


@pytest.mark.brokers
@pytest.mark.timeout(900)
@pytest.mark.parametrize("repertoire", SAMPLE)
def test_a_sample_of_schedules(repertoire: str, hunt: Hunt, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "repertoire", repertoire)
    shown = []
    for played in hunt.play(SAMPLE[repertoire], AT_ONCE):
        print(played)
        assert not played.failure
        if played.findings:
            shown.append(played.schedule.seed)
    assert shown == []


#: Parts of schedules that showed a fault once: an empty copy under a running mirror whose source goes on behind aborted
#: records that it deleted; somebody who writes to a copy between a loss and its acceptance; a deleted copy whose name
#: collides with another one's by now; a bounded run whose first tasks come late, on a copy made anew behind a stop; a
#: source that was cut, grew again and deleted up to the middle of a batch of the copy.
SHOWN = [
    (53202, (1, 3, 5, 7, 10, 12, 14), ("produce", "run", "cut_source", "produce", "produce", "expire_source", "run")),
    (10030, (2, 3, 6, 7, 8), ("run", "live", "produce", "expire_source", "settle")),
    (21064, (0, 1, 2, 3, 5, 6, 7), ("produce", "run", "produce", "expire_source", "stranger_writes", "accept", "run")),
    (83455, (2, 4, 5, 8, 9, 10), ("produce", "run", "stranger_writes", "run", "delete_target", "run")),
    (60713, (0, 3, 4, 5, 6, 7, 8, 9), ("produce", "run", "live", "delete_target", "clash", "appear", "grow", "settle")),
]


@pytest.mark.brokers
@pytest.mark.parametrize(("seed", "only", "names"), SHOWN)
def test_what_was_found_once_is_found_no_more(
    seed: int, only: tuple[int, ...], names: tuple[str, ...], hunt: Hunt
) -> None:
    played = hunt.one(seed, only)
    assert tuple(op.name for op in played.schedule.operations) == names, "seeds mean other schedules by now"
    assert not played.failure
    assert not played.findings, str(played)


@pytest.mark.soak
@pytest.mark.brokers
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("first", range(5000, 5500, 50))
def test_many_schedules(first: int, hunt: Hunt) -> None:
    shown = []
    for played in hunt.play(range(first, first + 50), AT_ONCE):
        print(played)
        assert not played.failure
        if played.findings:
            shown.append(played.schedule.seed)
    assert shown == []


def _is_missed(mend: Mend, hunt: Hunt) -> None:
    for played in hunt.seeds_of(mend, AT_ONCE):
        assert not played.findings, f"with the mend: {played}"
        assert not played.failure
    found = [*hunt.without(mend, AT_ONCE)]
    output = "\n".join(map(str, found))
    assert {kind for played in found for kind in played.kinds} & set(mend.finds), f"without the mend: {output}"


@pytest.mark.brokers
@pytest.mark.parametrize("mend", [one for one in mends() if one.name in QUICK], ids=lambda mend: mend.name)
def test_a_mend_that_is_taken_out_is_missed(mend: Mend, hunt: Hunt) -> None:
    _is_missed(mend, hunt)


@pytest.mark.soak
@pytest.mark.brokers
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mend", [one for one in mends() if one.name not in QUICK], ids=lambda mend: mend.name)
def test_each_mend_that_is_taken_out_is_missed(mend: Mend, hunt: Hunt) -> None:
    _is_missed(mend, hunt)
