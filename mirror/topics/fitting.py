"""What the target takes of what is asked for its topics, as it answers requests that change nothing (validate-only).

A setting may be refused for a minimum of a newer release, a policy, or a name that the brokers do not know, and so may
a number of replicas. That costs the topic nothing else: it is made, or goes on, without that setting, or with the
nearest value that the refusal names and the target takes. Brokers and policies report one thing at a time, in words of
their own, so settings are offered one after another, on top of those that were taken.

What decides which records there are (`KEEPING`) is the exception. A topic that would keep less than was asked for is
not created. A copy that exists goes on, and of these settings gets only what keeps more than before.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mirror.config import Replicas
from mirror.errors import AccessDenied
from mirror.journal.entries import Unfollowed
from mirror.kafka.admin import Admin, Creation
from mirror.kafka.topic_configs import KEEPING, MAX_REQUEST, ConfigChange, by_topic, keeps, plain_values
from mirror.names import first_of
from mirror.observability import logs
from mirror.policy.remedies import Fix
from mirror.policy.rules import AFTER_MAX, BEFORE_MAX, NO_LIMIT, Finding, refused

#: The number of replicas among settings, as Connect names it.
REPLICAS: Final = "replication.factor"
DEFAULT_REPLICAS: Final = "default.replication.factor"
_OWN_REPLICAS: Final = 3
#: Numbers of replicas to try where the refusal names none that the target takes; -1 is its default.
_OTHER_REPLICAS: Final = ("-1", "3", "2", "1")
#: A number that is so many times smaller than the value asked for counts something else, as 8 in "8 MiB".
_OTHER_UNIT: Final = 1024
_MOST_VALUES: Final = 4
#: What a controller says that sees no broker alive, as right behind a start.
_NO_BROKER: Final = "fenced"
_PASSES: Final = 2

_log = logs.get(__name__)

#: Settings by name; None asks for the default.
Asked = Mapping[str, str | None]
#: Answers, by topic, why these settings are refused.
Ask = Callable[[Mapping[str, Asked]], Mapping[str, str]]


# --- Which settings are taken (pure, but for `Ask`) -------------------------------------------------------------------


@dataclass(slots=True)
class Fitted:
    """What is taken of what was asked for one topic."""

    #: Settings, with the values that are taken.
    taken: dict[str, str | None] = field(default_factory=dict)
    #: By setting, why the value that was asked for is refused.
    refused: dict[str, str] = field(default_factory=dict)
    #: Why all of it together is refused; empty where it is taken.
    why: str = ""


def fitted(wanted: Mapping[str, Asked], ask: Ask) -> dict[str, Fitted]:
    """Offer settings to the target, by topic; those of a refused topic one by one, and in the second pass those again
    that may have lacked another one. All topics are asked about together.
    """
    whys = ask(wanted) if wanted else {}
    found = {topic: Fitted(why=whys.get(topic, "")) for topic in wanted}
    for topic in wanted.keys() - whys.keys():
        found[topic].taken |= wanted[topic]

    def refusals(name: str, values: Mapping[str, str | None]) -> Mapping[str, str]:
        """Offer a setting, by topic, and return why it is refused where it is."""
        offers = {topic: {**found[topic].taken, name: value} for topic, value in values.items()}
        no = ask(offers) if offers else {}
        for topic in offers.keys() - no.keys():
            found[topic].taken = offers[topic]
        return no

    names = {name for topic in whys for name in wanted[topic]}
    for _ in range(_PASSES):
        for name in sorted(names, key=lambda name: (name != REPLICAS, name not in KEEPING, name)):
            left = [topic for topic in whys if name in wanted[topic] and name not in found[topic].taken]
            no = refusals(name, {topic: wanted[topic][name] for topic in left})
            for topic in left:
                found[topic].refused.pop(name, None)
                found[topic].refused |= {name: no[topic]} if topic in no else {}
            others = {topic: nearest(name, wanted[topic][name], no[topic].replace(topic, "")) for topic in no}
            while values := {topic: others[topic].pop(0) for topic in no if others[topic]}:
                no = refusals(name, values)
        if not any(found[topic].taken for topic in whys):
            break
    return found


def nearest(name: str, value: str | None, why: str) -> list[str]:
    """Return values for a setting that a refusal names, as its minimum or maximum, the nearest first."""
    if value is None or _NO_BROKER in why or not re.fullmatch(r"-?\d+(\.\d+)?", value):
        return []
    asked = float("inf") if float(value) < 0 else float(value)
    least = -1 if asked == float("inf") else asked / _OTHER_UNIT
    named = [text for text in re.findall(r"(?<![\w.-])-?\d+(?:\.\d+)?", why) if float(text) >= least]
    near = sorted(named, key=lambda text: (abs(asked - float(text)), -float(text)))[:_MOST_VALUES]
    others = _OTHER_REPLICAS if name == REPLICAS else ()
    return [text for text in dict.fromkeys((*near, *others)) if text != value]


# --- Topics that are to be created ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Creations:
    """Topics as the target would create them.

    made: the topics, with the settings and replicas that it takes.
    findings: the refusals of topics that it does not create, or that would keep less than was asked for.
    unfollowed: settings that these topics get with another value, or by the target's default.
    """

    made: tuple[Creation, ...] = ()
    findings: tuple[Finding, ...] = ()
    unfollowed: tuple[Unfollowed, ...] = ()


def fit_creations(
    target: Admin, creations: Sequence[Creation], replicas: Replicas, copies: Collection[str] = ()
) -> Creations:
    """Ask the target how it would create these topics. `replicas`: as who says how many they get. `copies`: those of
    them whose settings follow others. Makes nothing; raises ClusterError.
    """
    wanted: dict[str, Asked] = {
        creation.topic: {REPLICAS: str(creation.replication_factor), **creation.configs} for creation in creations
    }
    known = {creation.topic: creation for creation in creations}

    def made(topic: str, asked: Asked) -> Creation:
        configs = {name: value for name, value in asked.items() if name != REPLICAS and value is not None}
        return replace(known[topic], replication_factor=int(asked.get(REPLICAS) or -1), configs=configs)

    found = fitted(wanted, lambda asked: target.creations_refused([made(*creation) for creation in asked.items()]))
    return Creations(
        made=tuple(made(topic, fit.taken or wanted[topic]) for topic, fit in found.items()),
        findings=tuple(_not_created(found, wanted, copies)),
        unfollowed=tuple(
            Unfollowed(topic, name, wanted[topic][name] or "", fit.taken.get(name) or "", why)
            for topic, fit in found.items()
            for name, why in fit.refused.items()
            if fit.taken and not (name == REPLICAS and replicas == "target")  # the target has its say
        ),
    )


def _not_created(
    found: Mapping[str, Fitted], wanted: Mapping[str, Asked], copies: Collection[str]
) -> Iterator[Finding]:
    for topic, fit in found.items():
        lost = [name for name in fit.refused if not _is_kept(name, fit.taken.get(name), wanted[topic][name])]
        if fit.why and not fit.taken and _NO_BROKER in fit.why:
            continue  # it may be created a moment later
        elif fit.why and not fit.taken:
            what = f"the target refuses to create it: {fit.why}"
        elif lost:
            asked = " and ".join(f"{name}={wanted[topic][name]}" for name in lost)
            what = f"needs {asked} to keep what it is to keep, and the target refuses that: {fit.refused[lost[0]]}"
        else:
            continue
        what += "; let the target allow that, or create the topic there by hand"
        if fit.taken and topic in copies:
            what += f", or have {' and '.join(lost)} in sync.configs_exclude for the target's default"
        yield refused(topic, what, Fix.SELF_EXPLANATORY)


def _is_kept(name: str, value: str | None, wanted: str | None) -> bool:
    return name not in KEEPING or keeps(name, value, wanted)


# --- Settings that are to change --------------------------------------------------------------------------------------


def fit_changes(target: Admin, changes: Iterable[ConfigChange]) -> tuple[list[ConfigChange], list[Unfollowed]]:
    """Ask the target which of these changes it takes; those as it takes them, and the settings that do not follow.
    Changes nothing; raises ClusterError.
    """
    before = {topic: {change.name: change for change in every} for topic, every in by_topic(changes).items()}

    def changed(topic: str, asked: Asked) -> list[ConfigChange]:
        return [replace(before[topic][name], after=value) for name, value in asked.items()]

    wanted: dict[str, Asked] = {
        topic: {name: change.after for name, change in own.items()} for topic, own in before.items()
    }
    found = fitted(
        wanted, lambda asked: target.changes_refused(change for every in asked.items() for change in changed(*every))
    )
    taken, unfollowed = list[ConfigChange](), list[Unfollowed]()
    for topic, fit in found.items():
        own, whys = before[topic], dict(fit.refused)
        get = {name: fit.taken.get(name, own[name].before) for name in own}
        if lost := [name for name in fit.refused if not _is_kept(name, get[name], wanted[topic][name])]:
            for changed_setting in changed(topic, fit.taken):
                if changed_setting.is_of_keeping and not changed_setting.keeps_more:
                    get[changed_setting.name] = changed_setting.before
                    whys.setdefault(changed_setting.name, f"it changes together with {first_of(lost)}")
        taken += (
            change for change in changed(topic, get) if change == own[change.name] or change.after != change.before
        )
        unfollowed += (
            Unfollowed(topic, name, own[name].after or "", get[name] or "", why) for name, why in whys.items()
        )
    return taken, unfollowed


# --- How many replicas a new topic gets -------------------------------------------------------------------------------


def replicas_of(asked: Replicas, source: int, defaults: Mapping[str, str], brokers: int) -> int:
    """Return how many replicas a new topic is to have; -1 where only the target knows. `source`: as many as the source
    topic has. `defaults`: those that the target's brokers have for new topics, as far as they are known.
    """
    if asked == "source":
        return min(source, brokers)
    if asked != "target":
        return asked
    needed = min(int(defaults.get("min.insync.replicas", -1)), brokers)
    return max(int(defaults.get(DEFAULT_REPLICAS, -1)), needed)


def own_replicas(asked: Replicas, defaults: Mapping[str, str], brokers: int) -> int:
    """Return how many a topic of the flow's own is to have: three at least, unless a number was asked for."""
    if isinstance(asked, int):
        return asked
    return max(replicas_of("target", 1, defaults, brokers), min(_OWN_REPLICAS, brokers))


#: By the name of a topic's setting, that of the brokers' setting which is its default.
_BROKER_NAMES: Mapping[str, str] = {
    AFTER_MAX: "log.message.timestamp.after.max.ms",
    BEFORE_MAX: "log.message.timestamp.before.max.ms",
    "min.insync.replicas": "min.insync.replicas",
    "segment.bytes": "log.segment.bytes",
    MAX_REQUEST: MAX_REQUEST,
    DEFAULT_REPLICAS: DEFAULT_REPLICAS,
}


def broker_defaults(target: Admin) -> dict[str, str]:
    """Return what a new topic gets on this cluster unless set otherwise, as topic configs."""
    try:
        broker = plain_values(target.broker_configs())
    except AccessDenied as error:  # preflight then knows less; the broker still refuses what does not fit
        _log.warning("broker_configs_hidden", cluster=target.settings.alias, reason=str(error))
        return dict.fromkeys((AFTER_MAX, BEFORE_MAX), str(NO_LIMIT))
    return {topic: broker[name] for topic, name in _BROKER_NAMES.items() if name in broker}
