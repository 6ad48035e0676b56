"""Whether a re-keyed copy holds what its source holds: every record once, with its new key, all of one key in one
partition.

Records come in another order and lie in other partitions, so what is compared is the sum of their hashes; keys are
checked for a sample.

    python -m mirror.lab.bench.rekeyed BOOTSTRAP TOPIC PARTITIONS FIRST STEP [FIELD]
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from collections import Counter
from typing import Any, Final

from mirror.lab.bench.content import read, shared_out

_SUMS: Final = 1 << 64
#: Of so many records the key of one is checked.
_SAMPLE: Final = 20


def compared(source: tuple[str, str, int], copy: tuple[str, str, int], field: str) -> tuple[bool, str]:
    """Of two topics (address, name, partitions) whether the second one is the first, re-keyed by a field of the JSON
    values; and one sentence on what was compared, or on what is wrong. Raises BenchError.
    """
    mine, its = shared_out("mirror.lab.bench.rekeyed", *source), shared_out("mirror.lab.bench.rekeyed", *copy, field)
    records, copied = (sum(part["records"] for part in side) for side in (mine, its))
    if records != copied:
        return False, f"It holds {copied:,} records, its source {records:,}."
    if len({sum(part["sum"] for part in side) % _SUMS for side in (mine, its)}) > 1:
        return False, "Values, headers or timestamps differ from its source."
    if wrong := sum(part["wrong"] for part in its):
        return False, f"{wrong:,} records have a wrong key."
    checked = sum(part["checked"] for part in its)
    if records and not checked:
        return False, "The key of none of its records was checked."
    places = Counter(key for part in its for keys in part["keys"] for key in keys)
    if scattered := sum(many > 1 for many in places.values()):
        return False, f"The records of {scattered:,} keys lie in more than one partition."
    return True, (
        f"All {records:,} records, each once: value, headers and timestamp; of {checked:,} of them the key itself, and "
        "that all of a key lie in one partition."
    )


def main() -> None:
    """Read every so many-th partition, and print what they come to as JSON."""
    bootstrap, topic, partitions, first, step, *field = sys.argv[1:]
    found: dict[str, Any] = {"records": 0, "sum": 0, "checked": 0, "wrong": 0}
    keys: dict[int, set[str]] = {}

    def add(message: Any) -> None:
        key, value = message.key(), message.value()
        content = b"%d %r " % (message.timestamp()[1], message.headers()) + value
        found["records"] += 1
        found["sum"] += int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")
        if field and zlib.crc32(value) % _SAMPLE == 0:  # by the value, since the key may be a wrong one
            found["checked"] += 1
            found["wrong"] += key != str(json.loads(value)[field[0]]).encode()
            keys.setdefault(message.partition(), set()).add((key or b"").hex())

    read(bootstrap, topic, range(int(first), int(partitions), int(step)), add)
    print(json.dumps({**found, "keys": [sorted(one) for one in keys.values()]}))


if __name__ == "__main__":
    main()
