"""How the page of a comparison looks: a colour for each arm in light and dark, and what its parts are laid out like."""

from __future__ import annotations

from typing import Final

from mirror.bench.drawing import COLOURS

_LIGHT: Final = {
    "mirror": ("#0b62c4", "#0e9aa7", "#6d5bd0", "#4d7c0f"),
    "rival": ("#c2410c", "#d99000", "#a21caf", "#be123c", "#92400e"),
    "limit": ("#4b5563", "#9ca3af"),
}
_DARK: Final = {
    "mirror": ("#58a6ff", "#3ddbd9", "#b3a5ff", "#a3e635"),
    "rival": ("#fb8c4e", "#fbc531", "#e879f9", "#fb7185", "#d6a36a"),
    "limit": ("#c0c6cf", "#8b949e"),
}


def _colours(theme: dict[str, tuple[str, ...]]) -> str:
    assert {kind: len(found) for kind, found in theme.items()} == COLOURS, "a plot may ask for each of them"
    return " ".join(f"--{kind}-{n}: {one};" for kind, found in theme.items() for n, one in enumerate(found))


STYLE: Final = f"""
:root {{ --ink: #1f2328; --faint: #8888; {_colours(_LIGHT)} }}
@media (prefers-color-scheme: dark) {{ :root {{ --ink: #e6edf3; {_colours(_DARK)} }} }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(14rem, 1fr)); gap: 1rem; margin: 1.5rem 0; }}
.tile {{ border: 1px solid var(--line); border-radius: .5rem; padding: .8rem 1rem; min-width: 0; }}
.tile p {{ margin: 0; }} .tile .big {{ font-size: 2.4rem; line-height: 1.2; font-weight: 650; }}
/* A shadow at the edge where a table goes on: phones show no scroll bar. */
.scroll {{ background:
  linear-gradient(to left, Canvas 30%, transparent) right / 3rem 100% no-repeat local,
  linear-gradient(to left, #8886, transparent) right / 1rem 100% no-repeat scroll; }}
.goals > li:nth-child(odd) {{ font-weight: 600; }}
@media (max-width: 30rem) {{ .goals {{ grid-template-columns: 1fr; gap: 0; }}
  .goals > li:nth-child(even) {{ margin-bottom: .8rem; }} }}
.small {{ font-size: .82rem; opacity: .8; }}
.goals {{ display: grid; grid-template-columns: max-content 1fr; gap: .5rem 1.2rem; list-style: none; padding: 0; }}
.why {{ font-style: italic; }}
.pair {{ margin-top: .5rem; font-size: .82rem; }}
.pair span {{ display: block; height: .55rem; min-width: 2px; border-radius: 1px; }}
.plots {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.5rem 2rem; }}
figure {{ margin: 0; min-width: 0; }} figcaption {{ font-weight: 600; }}
svg {{ display: block; width: 100%; height: auto; max-width: 36rem; stroke-linejoin: round; }}
h3 {{ font-size: 1rem; margin: 1.4rem 0 .3rem; }} pre {{ overflow-x: auto; font-size: .82rem; }}
td span.small {{ display: block; }} summary {{ cursor: pointer; padding: .2rem 0; }}
.wide {{ font-size: .9rem; }}
.wide th {{ vertical-align: bottom; white-space: normal; min-width: 4.2rem; font-size: .8rem; line-height: 1.3; }}
.wide th, .wide td {{ padding-left: .45rem; padding-right: .45rem; }}
.wide th:first-child, .wide td:first-child {{ min-width: 6.5rem; position: sticky; left: 0; background: Canvas; }}
"""
