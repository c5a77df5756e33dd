"""The API keys of a server: from the plan, and from a file that is read again when it changes."""

import hmac
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from appliance.base.errors import ApplianceError
from appliance.base.hashing import key_hash
from appliance.base.log import fields, logger
from appliance.plan.key_file import KeyEntry, read_key_file
from appliance.plan.serving_types import AuthPlan, KeyPlan
from appliance.server.http.callers import Account, Caller
from appliance.service.metrics import ServiceMetrics

_log = logger("server")

_Signature = tuple[int, int, int]


class KeyRing:
    """Finds the caller of a request. A key that was taken out of the file opens nothing from then on."""

    def __init__(
        self,
        auth: AuthPlan,
        metrics: ServiceMetrics,
        accounts: Callable[[str], Account | None] = lambda name: None,
    ) -> None:
        """`accounts`: where the key of a name is counted; None: here.

        Raises ApplianceError when the file of keys cannot be read, or names a planned key again.
        """
        self._metrics = metrics
        self._accounts = accounts
        self._callers: dict[str, tuple[KeyEntry, Caller]] = {}
        self.use(auth)

    def use(self, auth: AuthPlan) -> None:
        """Takes the keys of another plan. Raises what the constructor raises; the former keys are then kept."""
        planned = [
            _entry(name, stored, auth.key_rules.get(name, KeyPlan())) for name, stored in auth.key_hashes.items()
        ]
        file = Path(auth.keys_file) if auth.keys_file else None
        signature: _Signature | None = _signature(file) if file is not None else None
        entries = _read(planned, file)
        self._planned, self._file, self._signature = planned, file, signature
        self._take(entries)

    @property
    def is_open(self) -> bool:
        """Returns True if no key is needed: none are planned, and there is no file of them."""
        return not self._planned and self._file is None

    def named(self, name: str) -> Caller | None:
        """The holder of a key by its name, for work that outlives a request."""
        self._follow_file()
        found = self._callers.get(name)
        return found[1] if found is not None else None

    def find(self, headers: Mapping[str, str]) -> Caller | None:
        """The holder of the key in `Authorization: Bearer KEY` or `x-api-key: KEY`.

        Every stored hash is compared in constant time, whichever fits.
        """
        self._follow_file()
        scheme, _, given = headers.get("authorization", "").partition(" ")
        key = given.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        if not key:
            return None
        hashed, found = key_hash(key), None
        for entry, caller in self._callers.values():
            if hmac.compare_digest(hashed, entry.hash):
                found = caller
        return found

    def _follow_file(self) -> None:
        if self._file is None or (signature := _signature(self._file)) == self._signature:
            return
        self._signature = signature
        try:
            self._take(_read(self._planned, self._file))
            _log.info("keys were read again", extra=fields(count=len(self._callers)))
        except ApplianceError as error:
            _log.error("keys cannot be read again; the ones before hold", extra=fields(reason=str(error)))

    def _take(self, entries: list[KeyEntry]) -> None:
        """Callers whose key stayed as it was keep their counts."""
        before = self._callers
        self._callers = {
            entry.name: before[entry.name]
            if entry.name in before and before[entry.name][0] == entry
            else (entry, Caller(entry.name, entry, self._metrics, account=self._accounts(entry.name)))
            for entry in entries
        }


def _read(planned: list[KeyEntry], file: Path | None) -> list[KeyEntry]:
    added = read_key_file(file) if file is not None else []
    taken = {entry.name for entry in planned} & {entry.name for entry in added}
    if taken:
        raise ApplianceError(f"{file}: the plan has a key named {min(taken)!r} already")
    return [*planned, *added]


def _entry(name: str, stored: str, rules: KeyPlan) -> KeyEntry:
    return msgspec.convert({"name": name, "hash": stored, **msgspec.to_builtins(rules)}, KeyEntry)


def _signature(path: Path) -> _Signature | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
