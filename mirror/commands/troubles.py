"""What `mirror status` says of partitions that do not copy: one line for all of a topic that stand alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.text import Text

from mirror.commands.tables import count, plain, state_text
from mirror.observe.figures import Figures
from mirror.states import State


def troubles(figures: Iterable[Figures]) -> Iterator[Text]:
    """A line for each trouble, stops first. Details that differ in the partition's own name alone are one."""
    groups: dict[tuple[State, str, str], list[Figures]] = {}
    for one in figures:
        if one.detail:
            alike = one.detail.replace(f"{one.topic}-{one.partition}", one.topic)
            groups.setdefault((one.state, one.topic, alike), []).append(one)
    for (state, _, alike), every in sorted(groups.items(), key=lambda group: not group[0][0].is_stop):
        text = Text.assemble(state_text(state), plain(f" {_told(every, alike)}"))
        text.stylize("red" if state.is_stop else "yellow")
        yield text


def _told(every: Sequence[Figures], alike: str) -> str:
    first = every[0]
    if len(every) == 1:
        return f"{first.topic}-{first.partition} at offset {first.next_offset}: {first.detail}"
    return f"{first.topic}, {count(len(every), 'partition')} ({spans(one.partition for one in every)}): {alike}"


def spans(numbers: Iterable[int]) -> str:
    """Numbers, those in a row as one: 0-3, 5."""
    rows: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if rows and number == rows[-1][1] + 1:
            rows[-1] = rows[-1][0], number
        else:
            rows.append((number, number))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in rows)
