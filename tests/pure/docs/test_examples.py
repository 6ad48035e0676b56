"""The examples in `configs/`: each is read, says what it is for, and selects what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.config import Settings, load
from mirror.policy.selection import select

FOLDER = Path(__file__).parents[3] / "configs"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
#: Example -> topics of a source, and the names that they get.
NAMES = {
    "quickstart": {"orders": "orders", "clicks-web": "clicks-web"},
    "prefix": {"orders": "eu.orders"},
    "translate": {"payments": "payments", "invoices-2026": "invoices-2026"},
    "many-topics": {"a-b": "a-b"},
    "compacted": {"customers": "customers", "stock-eu": "stock-eu"},
    "active": {"shop-orders": "shop-orders"},
    "passive": {"shop-orders": "shop-orders"},
    "bounded": {"orders": "orders", "clicks-web": "clicks-web"},
    "secure": {"orders": "orders", "clicks-web": "clicks-web"},
}
NEVER = ["__consumer_offsets", "mirror.x.offsets"]


@pytest.fixture
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Settings:
    """Beside the files that it names."""
    for name, value in (("EU", "eu.example:9092"), ("US", "us.example:9092"), ("US_PASSWORD", "hunter2")):
        monkeypatch.setenv(name, value)
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    for name in ("eu-password", "eu-ca.pem", "us-ca.pem"):
        (secrets / name).write_text("hunter2", encoding="utf-8")
        (secrets / name).chmod(0o600)
    copy = tmp_path / f"{request.param}.yaml"
    copy.write_bytes((FOLDER / copy.name).read_bytes())
    return load(copy)


def test_every_example_is_tested_and_says_what_it_is_for() -> None:
    assert set(EXAMPLES) == set(NAMES)
    for name in EXAMPLES:
        text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
        assert text.startswith("# ")
        assert max(map(len, text.splitlines())) <= 132


@pytest.mark.parametrize(("example", "name"), [(name, name) for name in EXAMPLES], indirect=["example"], ids=EXAMPLES)
def test_an_example_is_valid_and_selects_what_it_says(example: Settings, name: str) -> None:
    found = select(dict.fromkeys([*NAMES[name], *NEVER, "us.orders", "tmp-x", "app-changelog"], 1), example.topics)
    chosen = {pair.source: pair.target for pair in found.pairs}
    assert NAMES[name].items() <= chosen.items()
    assert not {*NEVER} & set(chosen)
    assert not found.clashes
    assert ("us.orders" in chosen) is (name == "many-topics"), "what came from there does not go back"


def test_the_pair_is_one_flow_and_its_reverse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EU", "eu.example:9092")
    monkeypatch.setenv("US", "us.example:9092")
    there, back = load(FOLDER / "active.yaml"), load(FOLDER / "passive.yaml")
    assert (there.source, there.target) == (back.target, back.source)
    assert there.topics == back.topics
    assert there.flow != back.flow
