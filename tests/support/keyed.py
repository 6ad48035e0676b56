"""Columns of records that have keys alone, to ask for their partitions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mirror.records.columns import Records


def keyed(keys: Sequence[bytes | None]) -> Records:
    """Records with these keys, which lie one behind the other; of the other columns nothing is said."""
    records = Records.empty(b"".join(key or b"" for key in keys), len(keys))
    sizes = [-1 if key is None else len(key) for key in keys]
    records.key_size[:] = sizes
    records.key_at[:] = np.cumsum([0, *(max(size, 0) for size in sizes)])[:-1]
    return records
