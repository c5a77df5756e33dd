"""Parses browser addresses of Hugging Face hub pages."""

from typing import Final, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from appliance.checkpoint.errors import CheckpointError

_HOSTS: Final = ("huggingface.co", "www.huggingface.co", "hf.co")
_OTHER_THINGS: Final = ("datasets", "spaces", "collections", "docs", "papers", "api")
_HINT: Final = "write hf://owner/name[@revision][/file.gguf]"


class HubPage(NamedTuple):
    """The page of a model or of a file. revision None: the default branch."""

    repo: str
    revision: str | None
    file: str | None

    @property
    def source(self) -> str:
        """The source string for a spec."""
        at = f"@{self.revision}" if self.revision else ""
        return f"hf://{self.repo}{at}" + (f"/{self.file}" if self.file else "")


def hub_page(source: str) -> HubPage | None:
    """Parses a page; None for a file itself (`/resolve/`) and for other addresses.

    Raises CheckpointError for a page that names neither a model nor a file of one.
    """
    parts = urlsplit(source)
    if parts.scheme not in ("http", "https") or parts.hostname not in _HOSTS:
        return None
    owner, name, view, revision, *path = [*map(unquote, parts.path.strip("/").split("/")), "", "", "", ""]
    file = "/".join(filter(None, path))
    if view == "resolve":
        return None
    if not name or owner in _OTHER_THINGS or view not in ("", "tree", "blob") or (view == "blob") != bool(file):
        raise CheckpointError(source, "is a page of the hub that names neither a model nor a file of one", _HINT)
    shown = parse_qs(parts.query).get("show_file_info", [file])[0]
    return HubPage(f"{owner}/{name}", None if revision in ("", "main") else revision, shown or None)
