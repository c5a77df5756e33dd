"""`appliance keys`: makes an API key and prints its hash; the key itself is shown once and stored nowhere."""

import json
import secrets
import sys
from pathlib import Path
from typing import Any

import msgspec

from appliance.base.errors import ApplianceError, ExitCode
from appliance.base.hashing import key_hash
from appliance.plan.key_file import KeyEntry, read_key_file, write_key_file

_RANDOM_BYTES = 32  # 256 bits cannot be guessed, so the stored digest needs no slow hash


def run_new(name: str, file: str | None) -> int:
    """Prints only the key on stdout, so that it can be piped into a secret store; the rest goes to stderr."""
    key = "sk-" + secrets.token_urlsafe(_RANDOM_BYTES)
    entry = KeyEntry(name=name, hash=key_hash(key))
    if file is not None:
        path = Path(file)
        entries = read_key_file(path) if path.exists() else []
        if name in {each.name for each in entries}:
            raise ApplianceError(f"{file} has a key named {name!r}", hint=f"appliance keys revoke {name} --file {file}")
        write_key_file(path, [*entries, entry])
        print(f"{name} was added to {file}; this is its key, shown once:", file=sys.stderr)
    else:
        print(f"endpoints:\n  auth:\n    keys:\n      - {{name: {name}, hash: {entry.hash}}}", file=sys.stderr)
        print("the key, shown once:", file=sys.stderr)
    print(key)
    return ExitCode.OK


def run_revoke(name: str, file: str) -> int:
    """Removes a key from a file. Servers that read the file refuse the key from their next request on."""
    path = Path(file)
    entries = read_key_file(path)
    kept = [entry for entry in entries if entry.name != name]
    if len(kept) == len(entries):
        known = ", ".join(entry.name for entry in entries) or "none"
        raise ApplianceError(f"{file} has no key named {name!r}", hint=f"it has: {known}")
    write_key_file(path, kept)
    print(f"{name} was taken out of {file}", file=sys.stderr)
    return ExitCode.OK


def _without_hash(entry: KeyEntry) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.to_builtins(entry)
    del data["hash"]
    return data


def run_list(file: str, as_json: bool = False) -> int:
    """Prints names and rules, without hashes."""
    entries = read_key_file(Path(file))
    if as_json:
        print(json.dumps([_without_hash(entry) for entry in entries], indent=2))
        return ExitCode.OK
    for entry in entries:
        rules = {field: getattr(entry, field) for field in entry.__struct_fields__ if field not in ("name", "hash")}
        set_rules = [f"{field} {value}" for field, value in rules.items() if value not in (None, 0)]
        print(f"{entry.name:<20} {', '.join(set_rules) or 'no limits'}")
    return ExitCode.OK
