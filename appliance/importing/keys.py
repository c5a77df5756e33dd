"""API keys of another server, as the digests that a spec holds."""

import hashlib
from collections.abc import Sequence

from appliance.importing.draft import Draft
from appliance.importing.words import is_reference


def place_keys(draft: Draft, keys: Sequence[str], origin: str) -> None:
    """origin: without the keys. A key that only a variable holds has no digest here, and is listed."""
    known = draft.get("endpoints.auth.keys") or []
    plain = [key for key in keys if not is_reference(key)]
    made = [
        {"name": f"imported-{number}", "hash": "sha256:" + hashlib.sha256(key.encode()).hexdigest()}
        for number, key in enumerate(plain, len(known) + 1)
    ]
    for key in keys:
        if is_reference(key):
            draft.leave(f"{origin} {key}", "a variable; `appliance keys new` makes the digest of a key")
    if made:
        draft.add("endpoints.auth.keys", made, f"{origin} ...")
        draft.notes.append("API keys are kept as digests")
