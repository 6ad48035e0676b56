"""What a rewritten batch must be like. Apart from `rewrite`: whoever only names it need not load the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

#: Bytes that a batch may decompress to, unless told otherwise.
CAP: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Records below `first_offset` are left out: they are mirrored already. `codec`: an id for all batches, None keeps
    each one's own. `max_bytes`: what the target takes as one batch. `cap`: what a batch may decompress to, in bytes.
    """

    first_offset: int = 0
    codec: int | None = None
    max_bytes: int = 2**31 - 1
    cap: int = CAP
