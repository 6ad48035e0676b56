"""Every link from one of the project's pages to another, or to a heading in it, leads somewhere."""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
LINK = re.compile(r"\]\(([^()\s]+)\)")
ELSEWHERE = re.compile(r"[a-z]+:")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def pages() -> list[Path]:
    """Those that belong to the project, and not what lies about in its folder."""
    git = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if git.returncode:  # an unpacked archive of the project
        return sorted(path for path in (*ROOT.glob("*.md"), *ROOT.glob("[a-z]*/**/*.md")))
    return [ROOT / name for name in git.stdout.splitlines()]


@cache
def headings(page: Path) -> frozenset[str]:
    """As they are named in links: lower case, spaces as hyphens, and nothing else but letters and digits."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    found = re.findall(r"^#+ +(.+?)\s*$", text, re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in found)


def broken(page: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
        if ELSEWHERE.match(link):
            continue
        name, _, heading = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (heading and heading not in headings(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page)


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "# One, two\n[a](#one-two) [b](#two) [c](a.md#one-two) [d](b.md) [e](https://c.example/#x)\n```\n[f](g)\n```\n"
    )
    assert broken(page) == ["#two", "b.md"]


def test_the_readme_links_the_index_and_that_every_page_of_docs() -> None:
    assert "(docs/index.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    pages_of_docs = {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert {name for name in pages_of_docs if f"({name})" not in text} == set()
