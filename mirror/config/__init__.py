"""The configuration: one YAML file, checked whole before anything starts.

Every problem is reported at once, each with its line, because a person who mends a file one error per run gives up.
Pydantic knows the values and YAML's node tree knows the lines (`yamltree`), so each complaint is looked up by its path.

- An unknown key is an error that names the nearest valid one; so are duplicate keys and YAML aliases.
- `${env:NAME}` and `${file:PATH}` (relative to the configuration file) may stand in any text value. Messages never show
  what a reference stands for; passwords may be given by reference only.
- Topic patterns are regular expressions that must match the whole name. They have at most 498 characters, and a
  repeat of a group that itself holds a repeat or an alternative, as in `(a+)*` or `(a|ab)*`, is refused (`names`).
- Without `exclude`, internal topics (`__.*`) and mirror's own (`mirror\\..*`) are excluded. A list replaces this
  one; neither is mirrored all the same.
"""

from mirror.config.models import (
    DEFAULT_EXCLUDE,
    MAX_FLOW_NAME,
    MAX_PATTERN,
    ClusterSettings,
    GroupSettings,
    LimitSettings,
    MetricSettings,
    Naming,
    Replicas,
    Section,
    Settings,
    SparkSettings,
    SyncSettings,
    TopicRule,
    TopicSettings,
    instant,
    parse_address,
)
from mirror.config.reading import cluster, load
from mirror.config.security import insecure

__all__ = [
    "DEFAULT_EXCLUDE",
    "MAX_FLOW_NAME",
    "MAX_PATTERN",
    "ClusterSettings",
    "GroupSettings",
    "LimitSettings",
    "MetricSettings",
    "Naming",
    "Replicas",
    "Section",
    "Settings",
    "SparkSettings",
    "SyncSettings",
    "TopicRule",
    "TopicSettings",
    "cluster",
    "insecure",
    "instant",
    "load",
    "parse_address",
]
