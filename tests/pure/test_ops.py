"""What operators load elsewhere: alert rules, the dashboard, the systemd unit, and the runbook behind them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from alerts import DASHBOARD, HOME, shown
from scraped import metrics, report, task, took

from mirror.errors import ExitCode
from mirror.states import State

RULES = HOME / "ops" / "prometheus" / "mirror.rules.yml"
RULES_TEST = RULES.with_name("mirror.rules.test.yml")
UNIT = HOME / "ops" / "systemd" / "mirror@.service"
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
RUNBOOK = (HOME / "RUNBOOK.md").read_text(encoding="utf-8")

needs_promtool = pytest.mark.skipif(not shutil.which("promtool"), reason="needs Debian's package prometheus")


def exposed() -> dict[str, set[str]]:
    """Every sample that the endpoint can give, with its labels."""
    full = metrics()
    full.learn([report(verdicts={"DROP/control": 1}, verdict_bytes={"DROP/control": 9}, bytes=1, records=1)])
    full.learn_task(task(fetch=took(1)))
    full.groups_followed()
    return {sample.name: set(sample.labels) for family in full.collect() for sample in family.samples}


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return list(group["rules"])


#: PromQL's own words that these expressions use; everything else in them is a metric or a label.
_WORDS = {
    *("sum", "max", "rate", "increase", "histogram_quantile", "last_over_time", "max_over_time", "topk", "vector"),
    *("by", "on", "and", "or", "unless", "offset"),
}
_LABEL_LISTS = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
_SELECTOR = re.compile(r"([a-zA-Z_:]\w*)\s*(?:\{([^}]*)\})?")


def unknown(expression: str, known: Mapping[str, set[str]]) -> list[str]:
    """What an expression asks for and the endpoint does not have: metrics, labels of theirs, labels to group by."""
    quiet = re.sub(r'"[^"]*"', '""', expression)
    grouped = {label.strip() for labels in _LABEL_LISTS.findall(quiet) for label in labels.split(",")}
    quiet = re.sub(r"\[[^]]*\]|\boffset \w+", "", _LABEL_LISTS.sub("", quiet))
    lacking, have = list[str](), set[str]()
    for name, selector in _SELECTOR.findall(quiet):
        if name in known:
            labels = known[name] | ({"le"} if name.endswith("_bucket") else set())
            asked = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector)
            lacking += [f"{name}{{{label}}}" for label in asked if label not in labels]
            have |= labels
        elif name not in _WORDS:
            lacking.append(name)
    return lacking + sorted(grouped - have)


def test_alerts_and_dashboard_ask_only_for_what_the_endpoint_has() -> None:
    known = exposed()
    asked = {alert["alert"]: alert["expr"] for alert in alerts()} | shown()
    assert {where: lacking for where, expr in asked.items() if (lacking := unknown(expr, known))} == {}
    queries = [one["query"]["query"] for one in BOARD["templating"]["list"] if one["type"] == "query"]
    assert queries
    for query in queries:
        named = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", query)
        assert named
        assert named[2] in known[named[1]]


def test_the_dashboard_shows_no_zero_where_no_mirror_reports() -> None:
    """A mirror that is gone would look as one of which nothing is stopped."""
    assert [panel for panel, expr in shown().items() if "vector(" in expr] == []
    figures = [panel for panel in BOARD["panels"] if panel["type"] == "stat"]
    assert {panel["fieldConfig"]["defaults"].get("noValue") for panel in figures} == {"no report"}


def test_every_alert_says_what_it_is_how_grave_and_where_to_read_and_is_tried() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in ("page", "ticket", "note")
        assert set(alert["annotations"]) == {"summary", "description", "runbook"}
        assert alert["annotations"]["runbook"] == f"RUNBOOK.md#{alert['alert'].lower()}"
    tried = yaml.safe_load(RULES_TEST.read_text(encoding="utf-8"))["tests"]
    fires = {one["alertname"] for test in tried for one in test["alert_rule_test"] if one["exp_alerts"]}
    assert fires == {alert["alert"] for alert in alerts()}


def test_every_alert_and_every_state_has_its_entry_in_the_runbook() -> None:
    headings = re.findall(r"^#{2,3} (.+)$", RUNBOOK, re.MULTILINE)
    wanted = {alert["alert"] for alert in alerts()} | set(State)
    assert wanted - set(headings) == set()
    assert len(headings) == len(set(headings)), "an anchor would lead to the first of two"
    entries = re.split(r"^#{2,3} .+$", RUNBOOK, flags=re.MULTILINE)[1:]
    assert [
        name for name, text in zip(headings, entries, strict=True) if name in wanted and len(text.strip()) < 40
    ] == []


def test_the_alert_for_stops_and_the_dashboard_name_every_stop() -> None:
    (alert,) = (alert for alert in alerts() if alert["alert"] == "MirrorPartitionStopped")
    for expression in (alert["expr"], shown()["Stopped partitions A"]):
        named = re.search(r'state=~"([^"]*)"', expression)
        assert named
        assert set(named[1].split("|")) == {state for state in State if state.is_stop}


def test_an_alert_fires_and_a_panel_shows_each_kind_of_loss() -> None:
    losses = {name for name in exposed() if "_total" in name and ("loss" in name or "lost" in name)}
    assert len(losses) == 2
    for name in losses:
        assert [alert for alert in alerts() if name in alert["expr"]], name
        assert [panel for panel, expr in shown().items() if name in expr], name


@needs_promtool
def test_promtool_takes_rules_and_dashboard_and_alerts_fire_as_they_should(tmp_path: Path) -> None:
    recorded = [{"record": f"panel:{number}", "expr": expr} for number, expr in enumerate(shown().values())]
    dashboard = tmp_path / "dashboard.yml"
    dashboard.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": recorded}]}))
    for what, file in (("check", RULES), ("test", RULES_TEST), ("check", dashboard)):
        done = subprocess.run(["promtool", what, "rules", str(file)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_is_started_again_for_as_long_as_it_takes() -> None:
    """A cluster may be away at a boot for longer than any limit, and one task that the kernel ends is no end of all."""
    output = dict(line.split("=", 1) for line in UNIT.read_text(encoding="utf-8").splitlines() if "=" in line)
    assert (output["StartLimitIntervalSec"], output["Restart"], output["OOMPolicy"]) == ("0", "on-failure", "continue")
    assert "StartLimitBurst" not in output
    assert output["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert not {str(ExitCode.CLUSTER.value), "1"} & set(output["RestartPreventExitStatus"].split())
