"""The page of a comparison: whole, of its own alone, harmless, and as wide as the screen."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from benchresults import ARMS, LOADS, result
from typer.testing import CliRunner

from mirror.cli import app
from mirror.errors import ConfigError
from mirror.lab.bench.page import page
from mirror.lab.bench.result import Result

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Tags in order, with what they are closed by; texts; every attribute."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(key, value or "") for key, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.fixture(scope="module")
def made() -> str:
    return page(result(), "bench.json")


def test_the_page_is_well_formed_and_names_all(made: str) -> None:
    read = Reader(made)
    assert not read.open
    output = "".join(read.texts)
    for name, (_, title, *_) in ARMS.items():
        assert f"{title} ({name})" in output
    assert all(title in output for title, *_ in LOADS.values())
    assert "53×" in output
    assert "Goals: 9 met, 1 missed, 0 not measured" in output
    assert "bench.json" in output


def test_the_page_needs_nothing_from_anywhere(made: str) -> None:
    read = Reader(made)
    assert not {"script", "img", "image", "link", "a", "iframe"} & set(read.tags)
    assert "http" not in made.replace("http-equiv", "")
    assert "@import" not in made
    assert all(found.startswith("#") for found in re.findall(r"url\(([^)]*)\)", made))
    assert all(value.startswith("#") for key, value in read.attributes if key in ("href", "src"))


def test_plots_speak_and_follow_the_theme(made: str) -> None:
    svgs = re.findall(r"<svg.*?</svg>", made, re.DOTALL)
    assert len(svgs) == 8
    assert any("all else, and nobody" in text and "target's brokers" in html.unescape(text) for text in svgs)
    for text in svgs:
        svg = fromstring(text)  # noqa: S314 - it was made here
        assert svg.get("role") == "img"
        assert "mirror" in (svg.get("aria-label") or "")
        assert "var(--mirror-0)" in text
        assert not re.search(r"(fill|stroke|color): *#", text), "a colour that is not the page's"
    ids = [value for key, value in Reader(made).attributes if key == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for key, value in Reader(made).attributes if key == "href"} <= set(ids)


def test_the_same_figures_make_the_same_page(made: str) -> None:
    assert page(result(), "bench.json") == made


def test_hostile_names_stay_texts() -> None:
    hostile = "<script>alert(1)</script> $x^2$ & \x1b[31m \" '"
    plain = result(["1MB-zstd"], ["mirror", "mm2"], rounds=1)
    text = page(
        replace(
            plain,
            arms=tuple(replace(arm, title=hostile, what=hostile, settings=f"{hostile}\n</pre>") for arm in plain.arms),
            workloads=tuple(replace(load, title=hostile) for load in plain.workloads),
            versions={hostile: hostile},
            command=hostile,
            environment=replace(plain.environment, cpu=hostile),
        )
    )
    read = Reader(text)
    assert "script" not in read.tags
    assert "\x1b" not in text
    assert text.count("&lt;script&gt;alert(1)&lt;/script&gt; $x^2$") > 5


def test_little_makes_a_page_that_says_so() -> None:
    reported = html.unescape(page(result(["8KB-lz4"], ["mirror"], rounds=1, more=False)))
    assert '<p class="verdict warn">' in reported
    assert "One round alone" in reported
    assert "Not measured: mm2 (MirrorMaker 2)." in reported
    assert "Not measured: no more latency added" in reported
    assert "Not varied: partitions; tasks; round trip" in reported
    assert "Nothing was measured." in page(result([], [], more=False))


def test_copies_that_are_not_equal_and_a_busy_machine_are_reported_above_all() -> None:
    few = result(["1MB-zstd"], ["mirror", "mm2"], more=False)
    wrong = replace(
        few,
        runs=(replace(few.runs[0], equal=False), *few.runs[1:]),
        failures=("loop: it ended with 1",),
        environment=replace(few.environment, load=3.0),
    )
    reported = page(wrong)
    before = reported.partition("Goals:")[0]
    assert "Not equal to the source afterwards: 1 copy (mirror, 1MB-zstd, round 0)." in before
    assert "a load of 3.00 on 2 cores" in before
    assert "Not measured: loop: it ended with 1" in before


@pytest.mark.proves("mirror bench page", "mirror bench compare", "mirror bench table")
def test_commands_make_a_page_a_table_and_a_comparison(tmp_path: Path) -> None:
    small = result(["1MB-zstd"], ["mirror", "mm2"], more=False)
    longer = replace(small, runs=tuple(replace(one, copy_s=9 * one.copy_s) for one in small.runs))
    raw, report, slower = tmp_path / "old.json", tmp_path / "new.html", tmp_path / "slower.json"
    raw.write_text(small.to_json(), encoding="utf-8")
    slower.write_text(longer.to_json(), encoding="utf-8")
    run = CliRunner().invoke
    assert run(app, ["bench", "page", str(raw), "--report", str(report)]).exit_code == 0
    assert report.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert Result.from_json((tmp_path / "new.json").read_bytes()) == small
    assert "| 1 MB batches, zstd | mirror |" in run(app, ["bench", "table", str(raw)]).output
    same = run(app, ["bench", "compare", str(raw), str(raw)])
    assert same.exit_code == 0
    assert "0 better and 0 worse beyond noise, 10 within it" in same.output
    worse = run(app, ["bench", "compare", str(raw), str(slower), "--json"])
    assert worse.exit_code == 5
    found = json.loads(worse.output)["changes"]
    verdicts = {one["arm"]: one["verdict"] for one in found if one["unit"] == "MB/s"}
    assert verdicts == {"mirror": "worse", "mm2": "worse"}


def test_the_raw_figures_are_not_overwritten_by_the_page(tmp_path: Path) -> None:
    raw = tmp_path / "raw.json"
    raw.write_text(result([], [], more=False).to_json(), encoding="utf-8")
    run = CliRunner().invoke(app, ["bench", "page", str(raw), "--report", str(raw)])
    assert isinstance(run.exception, ConfigError)
    assert "give the page another name" in str(run.exception)


def test_without_the_library_an_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match="`pip install matplotlib`"):
        page(result(["1MB-zstd"], ["mirror"], rounds=1))


@pytest.mark.soak
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [360, 390, 800, 1280])
def test_nothing_is_wider_than_the_screen(tmp_path: Path, made: str, width: int) -> None:
    # A window is never as narrow as a phone, and a frame in it is.
    asks = "<script>parent.document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></body>"
    (tmp_path / "page.html").write_text(made.replace("</body>", asks), encoding="utf-8")
    frame = tmp_path / "frame.html"
    frame.write_text(
        f"<title>none</title><iframe src=page.html style='width:{width}px;height:900px;border:0'></iframe>"
    )
    assert CHROMIUM is not None
    shown = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--dump-dom"),
            *("--allow-file-access-from-files", f"--user-data-dir={tmp_path}", "--window-size=1400,900"),
            frame.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    assert f"<title>{width} of {width}</title>" in shown
