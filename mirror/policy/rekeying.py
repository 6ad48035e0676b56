"""What becomes of a topic that is not copied batch by batch: its records get another key, another partition, or both
(pure).

Such a topic belongs to the re-key query for good (`spark/rekey/`). Everything that decides where a record goes, and
what it is there, is part of the value below, since a micro-batch that was begun is finished by what held when it began.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, Self

OnBadRecord = Literal["stop", "drop", "dead-letter"]

#: The parts of a rule that are expressions of Spark SQL.
EXPRESSIONS: Final = ("rekey", "where", "value", "headers")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rekeying:
    """How the records of `source` come to the `partitions` of `target`.

    `rekey`, `value` and `headers` are expressions for what a record gets anew, `where` for which records are wanted;
    None keeps what there is. `codec`: the id that batches are compressed to, None for that of the source's batches. A
    record for which an expression fails, or gives no key, goes by `on_bad_record`; `dead_letter` is the target topic
    for such. `progress`: the flow's own topic that holds how far all this has come. `compacted`: the target is, and
    takes no record without a key. `max_bytes`: the largest batch that it takes, and `dead_letter`.
    """

    source: str
    target: str
    partitions: int
    rekey: str | None = None
    where: str | None = None
    value: str | None = None
    headers: str | None = None
    codec: int | None = None
    on_bad_record: OnBadRecord = "stop"
    dead_letter: str = ""
    progress: str = ""
    compacted: bool = False
    max_bytes: int = 1_048_588
    continues_on_loss: bool = False

    @property
    def expressions(self) -> dict[str, str]:
        """The expressions that are set, by their names in a rule."""
        return {name: text for name in EXPRESSIONS if (text := getattr(self, name)) is not None}

    @property
    def own_topics(self) -> set[str]:
        """The topics of the target that are written."""
        return {self.target, self.progress, self.dead_letter} - {""}

    @property
    def writes_records_to(self) -> str:
        """The topics of the target that get records, for people."""
        return " and ".join(topic for topic in (self.target, self.dead_letter) if topic)

    @property
    def keeps_records(self) -> bool:
        """No record is changed or left out: only its partition is another one."""
        return not self.expressions

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Raises ValueError for what is no such value; keys that are not known are ignored."""
        known = {one.name for one in fields(cls)}
        try:
            return cls(**{name: value for name, value in values.items() if name in known})
        except TypeError as problem:
            raise ValueError(f"not a re-key rule: {json.dumps(values)[:200]}") from problem
