"""A failover's account in the flow's journal, for whoever asks again: it cannot be made once more when writers and
readers have moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from pydantic import TypeAdapter

from mirror.commands.failoverview import Account
from mirror.observe import logs
from mirror.observe.jsonrecords import NOT_OURS
from mirror.offsets.journal import Change

KEY: Final = b"failover/account"
#: A broker takes a megabyte unless told otherwise; of a larger account the partitions that are whole are left out, and
#: then offsets of groups, which are counted.
_MOST_BYTES: Final = 900_000
_ACCOUNT: Final = TypeAdapter(Account)


def account_entry(account: Account) -> Change:
    """The record that keeps it."""
    value = _ACCOUNT.dump_json(account)
    if len(value) > _MOST_BYTES:
        lacking = tuple(one for one in account.exposures if not one.is_whole)
        account = replace(account, exposures=lacking)
        value = _ACCOUNT.dump_json(account)
    while len(value) > _MOST_BYTES and account.gaps:
        kept = account.gaps[: len(account.gaps) // 2]
        account = replace(account, gaps=kept, more_gaps=account.more_gaps + len(account.gaps) - len(kept))
        value = _ACCOUNT.dump_json(account)
    return KEY, value


def account_in(known: Mapping[bytes, bytes]) -> Account | None:
    """What the newest records of a journal keep; None where there is none, or none that can be read."""
    if (value := known.get(KEY)) is None:
        return None
    try:
        return _ACCOUNT.validate_json(value)
    except NOT_OURS as problem:
        logs.get("mirror.failover").warning("journal_record_unread", key=KEY.decode(), reason=repr(problem))
        return None
