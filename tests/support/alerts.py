"""Alert rules, as they are shown."""

from __future__ import annotations

import json
import re
from pathlib import Path

HOME = Path(__file__).parents[2]
DASHBOARD = HOME / "ops" / "grafana" / "mirror.json"


def shown() -> dict[str, str]:
    """The dashboard's expressions by panel, with its variables as Grafana would fill them in."""
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    filled = {"$__rate_interval": "5m", "$flow": ".*", "$topic": ".*"}
    return {
        f"{panel['title']} {target['refId']}": re.sub(r"\$\w+", lambda found: filled[found[0]], target["expr"])
        for panel in board["panels"]
        for target in panel["targets"]
    }
