"""A configuration under way: values by their places, what is to be set outside, and remarks beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from mirror.mm2.properties import Property
from mirror.mm2.references import Translator
from mirror.mm2.scope import Scope
from mirror.yamltree import Keys


@dataclass(slots=True)
class Draft:
    """One flow's file: `values` by place, in their order; `origins` are the properties that values came from; `remarks`
    are comments, each behind the value at its place.
    """

    scope: Scope
    translator: Translator
    values: dict[Keys, Any] = field(default_factory=dict)
    origins: dict[Keys, Property] = field(default_factory=dict)
    remarks: dict[Keys, list[str]] = field(default_factory=dict)

    def put(self, where: Keys, value: Any, origin: Property | None = None) -> None:
        """Set a value."""
        self.values[where] = value
        if origin is not None:
            self.origins[where] = origin

    def remark(self, where: Keys, text: str) -> None:
        """Say something about the value at a place, or about its section."""
        self.remarks.setdefault(where, []).append(text)
