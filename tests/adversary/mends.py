"""Mends that the hunt is held to: decisions of the mirror, and what takes their place so that a fault comes back.

The hunt must find the fault while a mend is taken out, and nothing while it is there:

    python -m tests.adversary --mends                        # each of them
    python -m tests.adversary --mends times_are_data
    python -m tests.adversary --schedules 20 --without times_are_data

A decision is a function, method or value of the package, by the dotted name under which the mirror looks it up: where a
module imports a function by its name, that is the name in the importing module. Decisions are replaced in the mirror's
processes as they begin (`driving`). Where two decisions protect from a fault, a mend takes both out.

To add one, write down operations that show the fault (`--shrink` prints those that are enough), and name the decision
that keeps it away. Where the mirror has no name for it, extract one.
"""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from unittest.mock import patch

#: Names the mend that commands begin without.
VARIABLE: Final = "MIRROR_WITHOUT"
#: From what a name stands for to what it is to stand for.
Replacement = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mend:
    """One mend.

    about: what the mirror does without it.
    finds: kinds of findings, of which one shows it.
    plays: the operations that show it (`operations.written`).
    flow: the traits of the schedule's flow, where they are not plain.
    replaced: the decisions, by dotted name, and what takes their place.
    timeout_s: in how many seconds a live mirror must come to rest, or end, while the mend is taken out.
    """

    name: str
    about: str
    finds: tuple[str, ...]
    plays: str
    replaced: Mapping[str, Replacement]
    flow: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 180.0


def value(new: object) -> Replacement:
    """Replace a value."""
    return lambda _: new


def always(answer: object) -> Replacement:
    """Replace a function by one that always gives the same answer."""
    return lambda _: lambda *_args, **_options: answer


def eventually(answer: object) -> Replacement:
    """Replace a coroutine function by one that always gives the same answer."""

    async def answered(*_: Any, **__: Any) -> object:
        return answer

    return lambda _: answered


def _named_if_unknown(not_named: Any) -> Any:
    return lambda source, topic_id, seen, *more: "" if seen is None else not_named(source, topic_id, seen, *more)


def _unclaimed(standing_of: Any) -> Any:
    return lambda pair, ours, theirs, seen, _claim, *more, **rest: standing_of(
        pair, ours, theirs, seen, None, *more, **rest
    )


def _never_frozen(standing_of: Any) -> Any:
    def standing(*args: Any, **options: Any) -> Any:
        verdict = standing_of(*args, **options)
        is_frozen = verdict.standing.name == "FROZEN"
        return replace(verdict, standing=type(verdict.standing).OURS, reason="") if is_frozen else verdict

    return standing


def _without_epoch(resume: Any) -> Any:
    async def resumed(*args: Any, **options: Any) -> Any:
        return replace(await resume(*args, **options), last_epoch=-1)

    return resumed


def _without_doubt(table: Any) -> Any:
    return tuple(row for row in table if row.rule != "P7" or row is table[-1])


def _equal_to_the_end(_compared: Any) -> Any:
    from mirror.replication.observe import Comparison

    async def compared(_self: Any, facts: Any, _batch: Any, _following: Any) -> Any:
        return Comparison(epoch=(facts.source_epoch, facts.end), begin=facts.start)

    return compared


def _until_the_end(_until_next_segment: Any) -> Any:
    async def until(_cluster: Any, _partition: Any, fetched: Any, last: Any) -> Any:
        return replace(last, next_offset=max(last.first, fetched.high_watermark))

    return until


def _from_zero(decide: Any) -> Any:
    return lambda source, end, target, agreed, _start=0, *more: decide(source, end, target, agreed, 0, *more)


def _all_together(each: Any) -> Any:
    return lambda _failures: each(None)


MENDS: Final = (
    # --- nothing is destroyed -----------------------------------------------------------------------------------------
    Mend(
        name="foreign_topics_are_refused",
        about="A topic of the target that the journal does not name is taken for the flow's.",
        finds=("I1 settings were changed",),
        plays="stranger_topic(a, amount=75); produce(a, amount=5); configure(a, kind=short); run",
        replaced={
            "mirror.topics.adoption.not_named": _named_if_unknown,
            "mirror.topics.adoption.tails": eventually({}),
        },
    ),
    Mend(
        name="claims_of_other_flows_are_seen",
        about="A topic that another flow's journal names is taken for nobody's.",
        finds=("I1 two flows write to one topic",),
        plays="run; second",
        replaced={"mirror.topics.adoption.standing_of": _unclaimed},
    ),
    Mend(
        name="copies_of_recreated_topics_are_frozen",
        about="Settings of a source topic that was made anew go to the copy of the former one.",
        finds=("I1 settings were changed",),
        plays="produce(a, amount=6); run; recreate(a, kind=week); run",
        replaced={
            "mirror.topics.adoption.standing_of": _never_frozen,
            "mirror.topics.reconcile.begun_as": always(None),
            "mirror.topics.adoption.tails": eventually({}),
        },
    ),
    Mend(
        name="copies_are_compared_before_a_change",
        about="The settings of a source that lost records go to a copy that kept them.",
        finds=("I1 records were deleted",),
        plays="produce(a, amount=26); run; cut_source(a, amount=25); run; configure(a, kind=short); run",
        replaced={"mirror.topics.adoption.tails": eventually({})},
    ),
    Mend(
        name="topics_are_changed_by_their_ids",
        about="Settings and partitions of copies are changed by name alone: a topic that took the name gets them.",
        finds=("I1 settings were changed",),
        plays="produce(a, amount=6); run; configure(a, kind=week); asleep(a, kind=run/replaced)",
        replaced={"mirror.kafka.admin.Admin._others": always(frozenset())},
    ),
    Mend(
        name="damage_ends_with_its_batch",
        about="A damaged batch that ends a segment takes all up to the end of the log.",
        finds=("I1 more is left out than is damaged",),
        plays="alike(a, amount=3); produce(a, amount=9); damage_source; leave_out; run",
        flow={"created": ("segments",)},
        replaced={"mirror.replication.damage._until_next_segment": _until_the_end},
    ),
    # --- what is said to be equal is equal ----------------------------------------------------------------------------
    Mend(
        name="last_batches_are_compared",
        about="The last data batch of a copy, and the gap behind it, are not compared with the source's.",
        finds=("I2 records are others",),
        plays="produce(a, amount=15); run; stranger_writes; produce(a, amount=15); run",
        replaced={"mirror.replication.observe.Observer._compared": _equal_to_the_end},
    ),
    Mend(
        name="copies_are_compared_behind_the_position",
        about="A copy is compared by its last batch alone, the right one at many offsets if batches are alike.",
        finds=("I2 records are others",),
        # its task lasts, so that it looks again only when the source has batches everywhere that the copy has some
        plays=(
            "live; alike(a, amount=30); settle; stranger_writes(a, amount=50); alike(a, amount=9); settle;"
            " alike(a, amount=9); kill; run"
        ),
        flow={"lasts": True, "seed": 26},  # all of one codec
        replaced={"mirror.replication.observe.Observer._compared_behind": eventually(None)},
    ),
    Mend(
        name="expired_copies_must_be_confirmed",
        about="A copy of which nothing can be compared is believed.",
        finds=("I2 records were never copied",),
        plays=(
            "produce(a, amount=7); run; stranger_writes(a, amount=25); expire_target(a, amount=100);"
            " produce(a, amount=22); run"
        ),
        replaced={"mirror.replication.position.EQUAL_OFFSETS": _without_doubt},
    ),
    Mend(
        name="leader_epochs_of_the_source_are_asked",
        about="Whether the source was cut back is known by its content alone.",
        finds=("I2 records are others",),
        plays=(
            "produce(a, amount=2); produce(a, amount=3); run; cut_source; produce(a, amount=2, kind=commit);"
            " produce(a, amount=3); expire_source(a, amount=75); run"
        ),
        replaced={
            "mirror.replication.decide._was_cut": always(False),
            "mirror.replication.start.resume": _without_epoch,
        },
    ),
    Mend(
        name="gaps_are_compared_where_offsets_move",
        about="What the source has behind the last record of a copy is not looked at, and its leader epochs neither.",
        finds=("I2 records are missing",),
        plays=(
            "produce(a, amount=27, kind=keyed); produce(a, amount=21, kind=abort); run; cut_source(a, amount=50);"
            " produce(a, amount=19); produce(a, amount=20, kind=keyed); run"
        ),
        flow={"translates": True, "seed": 11493},
        replaced={
            "mirror.replication.decide._was_cut": always(False),
            "mirror.replication.observe.Observer.gap_difference": eventually(""),
        },
    ),
    Mend(
        name="a_reconnected_target_is_read_again",
        about="After a reconnect, or in another leader epoch of the target, batches go on as if nothing had happened.",
        finds=("I4 DIVERGED without its cause", "I4 FENCED without its cause", "I2 records are others"),
        plays=(
            "produce(a, amount=5, kind=old); live; cut_target(a, amount=25); produce(a, amount=17, kind=commit); settle"
        ),
        flow={"lasts": True},
        replaced={"mirror.replication.writer._reconnected": always("")},
    ),
    Mend(
        name="times_are_data",
        about="A copy that somebody has date its records goes on as if it were equal.",
        finds=("I2 records are others",),
        plays="produce(a, amount=6); live; set_target(a, kind=stamps); produce(a, amount=27); settle",
        replaced={"mirror.replication.writer._has_own_time": always(False)},
    ),
    Mend(
        name="suspended_mirrors_check_again",
        about="A mirror that was frozen goes on as if nothing had happened meanwhile.",
        finds=("I8 reports went back",),
        plays="produce(a, amount=3, kind=old); live; overtake(a, amount=50)",
        replaced={f"mirror.suspension.{name}_SECONDS": value(1e9) for name in ("SUSPENDED", "LEASE")},
    ),
    Mend(
        name="verify_names_what_is_not_whole",
        about="`verify` says 0 of a copy that is equal as far as it goes.",
        finds=("I8 records are missing",),
        plays="produce(a, amount=15); run; produce(a, amount=3); verify",
        replaced={"mirror.verify.report.VerifyReport.is_whole": value(True)},
    ),
    Mend(
        name="offsets_are_translated_for_copies",
        about="Of two topics of one name any offset is translated, whatever they hold.",
        finds=("I8 an offset is translated to another record",),
        plays=(
            "produce(a, amount=24); run; stranger_writes(a, amount=75); produce(a, amount=10); translate(a, amount=90)"
        ),
        replaced={"mirror.commands.offsets_translate._agreeing": eventually(-1)},
    ),
    # --- stops --------------------------------------------------------------------------------------------------------
    Mend(
        name="stops_stand_in_the_journal",
        about="A stop that is in the journal does not keep a partition from going on.",
        finds=("I6 a stop lifted itself",),
        plays=("produce(a, amount=25); run; stranger_writes(a, amount=50); run; cut_target(a, amount=90); run"),
        replaced={"mirror.replication.assignment.KnownStop.bars": always(False)},
    ),
    Mend(
        name="a_stop_is_lifted_by_both_logs",
        about="`accept` lifts a stop for which nothing is left to compare, by the position that the stop contradicts.",
        finds=("I4 a stop was lifted by nothing",),
        plays="produce(a, amount=6); run; cut_source; run; produce(a, amount=18); expire_source(a, amount=75); accept",
        replaced={"mirror.commands.accept._Trial.still_stands": eventually(None)},
    ),
    Mend(
        name="one_topic_fails_alone",
        about="The first change to the target that fails is raised for all, and names that collide are no refusals.",
        finds=("I7 a live mirror does not come to rest",),
        plays="produce(a, amount=18); live; clash; appear(a, amount=100); grow; settle",
        timeout_s=30.0,
        replaced={
            "mirror.kafka.admin._each": _all_together,
            "mirror.topics.reconcile.name_findings": always(()),
        },
    ),
    Mend(
        name="a_refused_reload_ends_nothing",
        about="A configuration that preflight refuses is taken over by a running mirror.",
        finds=("I7 a live mirror does not come to rest",),
        plays="produce(a, amount=4); live; reload_bad; settle",
        timeout_s=30.0,
        replaced={"mirror.driver.topic_watcher.Replanner.refusals_of": always(())},
    ),
    # --- failovers and groups -----------------------------------------------------------------------------------------
    Mend(
        name="groups_stay_above_the_log_start",
        about="A group's offset below the target's log start is committed as it is.",
        finds=("I5 a group is below the start",),
        plays="produce(a, amount=6); run; commit(a, amount=50); expire_target(a, amount=90); run",
        replaced={"mirror.groups.sync.decide": _from_zero},
    ),
    Mend(
        name="groups_of_paused_topics_fail_over",
        about="A paused partition is not verified for its groups, and no group is named that does not get over.",
        finds=("I3 a group does not stand where it stood",),
        plays="produce(a, amount=10); commit; run; pause; commit(a, amount=100); failover",
        replaced={
            "mirror.failover.account.doubts_in": always(True),
            "mirror.commands.failover._FailoverRun.compare_groups": eventually(None),
        },
    ),
    Mend(
        name="interrupted_failovers_are_finished",
        about="A failover that was lost behind the end of the flow is refused by the next call.",
        finds=("I3 a failover cannot be finished",),
        plays="produce(a, amount=15); run; failover_killed",
        replaced={"mirror.journal.ownership.is_finished": always(True)},
    ),
    Mend(
        name="a_cut_journal_is_read_again",
        about="Who follows a journal does not see that its end, or all of it, is gone.",
        finds=("I3 copied on after a failover",),
        plays=(
            "produce(a, amount=18); live; produce(a, amount=9); settle; produce(a, amount=9); settle;"
            " cut_journal(a, amount=25); failover; produce(a, amount=9)"
        ),
        timeout_s=30.0,
        replaced={"mirror.journal.journal.Journal._lost": eventually(None)},
    ),
)


def named(name: str) -> Mend:
    """Return a mend. Raises ValueError if there is none of that name."""
    for mend in MENDS:
        if mend.name == name:
            return mend
    raise ValueError(f"no mend {name}: there are {', '.join(mend.name for mend in MENDS)}")


def take_out(name: str) -> None:
    """Replace the decisions of a mend in this process."""
    for path, replacement in named(name).replaced.items():
        replace_decision(path, replacement)


def replace_decision(path: str, replacement: Replacement) -> None:
    """Replace what a dotted name stands for. Raises AttributeError if there is no such name."""
    owner, _, decision = path.rpartition(".")
    place = pkgutil.resolve_name(owner)
    setattr(place, decision, replacement(getattr(place, decision)))


@contextmanager
def without(mend: Mend) -> Iterator[None]:
    """Let the commands that begin meanwhile be without a mend."""
    with patch.dict(os.environ, {VARIABLE: mend.name}):
        yield
