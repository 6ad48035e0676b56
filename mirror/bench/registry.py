"""Every arm by its name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from mirror.bench.arms import Arm
from mirror.bench.ownarms import Mirror, Rekey, Replay, Rewriting
from mirror.bench.rivals import Loop, MirrorMaker, SparkKafka
from mirror.errors import ConfigError

#: In the order in which they are shown.
ARMS: Final[Mapping[str, Arm]] = {
    "mirror": Mirror(),
    "mirror-rewrite": Rewriting(),
    "mirror-rekey": Rekey(),
    "mm2": MirrorMaker(tuned=False),
    "mm2-tuned": MirrorMaker(tuned=True),
    "loop": Loop(),
    "spark-kafka": SparkKafka(),
    "replay": Replay(),
}
#: What is measured unless somebody names others: nobody else's way to re-key is among them, and it takes its time.
USUAL: Final = tuple(name for name in ARMS if name != "mirror-rekey")


def chosen(names: Sequence[str]) -> tuple[Arm, ...]:
    """The arms of these names. Raises ConfigError."""
    if unknown := [name for name in names if name not in ARMS]:
        raise ConfigError(f"there is no arm {', '.join(unknown)}: choose from {', '.join(ARMS)}")
    return tuple(ARMS[name] for name in dict.fromkeys(names))
