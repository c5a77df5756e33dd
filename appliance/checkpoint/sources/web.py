"""Fetches one file from a web server, and resumes an earlier try if it is still the same file."""

from pathlib import Path
from typing import Final

import httpx

from appliance.checkpoint.sources.address import WebAddress
from appliance.checkpoint.sources.options import Fetch, UnreachableError

_PARTIAL: Final = 206
_RANGE_REFUSED: Final = 416
_PAGES: Final = ("text/html", "application/xhtml+xml")


def fetch(address: WebAddress, job: Fetch) -> Path:
    """Downloads the file into the work folder. Raises UnreachableError."""
    url = httpx.URL(address.url)
    where = f"{url.scheme}://{url.host}"
    if job.options.offline:
        raise UnreachableError(where, "offline")
    target = job.work_dir / f"{job.name}.download"
    try:
        _download(url, target, job)
    except httpx.HTTPStatusError as error:
        raise UnreachableError(where, f"answered {error.response.status_code} for {job.name}") from error
    except httpx.HTTPError as error:
        raise UnreachableError(where, f"{type(error).__name__} while fetching {job.name}") from error
    return target


def _download(url: httpx.URL, target: Path, job: Fetch) -> None:
    tag_file = target.with_suffix(".tag")
    tag = tag_file.read_text() if tag_file.is_file() and target.is_file() else None
    have = target.stat().st_size if tag else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-", "If-Range": tag} if have and tag else {})
    with httpx.stream("GET", url, headers=headers, timeout=job.options.timeout_s, follow_redirects=True) as response:
        if have and response.status_code == _RANGE_REFUSED:
            return  # nothing is left to fetch; the digest decides
        response.raise_for_status()
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _PAGES:
            raise UnreachableError(
                f"{url.scheme}://{url.host}", f"answered a page ({kind}), not a file, for {job.name}"
            )
        resumed = have if response.status_code == _PARTIAL else 0
        tag_file.write_text(response.headers.get("etag", ""))
        length = response.headers.get("content-length")
        job.progress.start(f"fetching {job.name}", resumed + int(length) if length else None, "bytes")
        job.progress.advance(resumed)
        with target.open("ab" if resumed else "wb") as file:
            for chunk in response.iter_bytes():  # as they arrive: the part before an interruption is kept
                file.write(chunk)
                job.progress.advance(len(chunk))
