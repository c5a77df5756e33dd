"""One file from a web server, resumed where an earlier try stopped."""

from pathlib import Path
from typing import Final

import httpx

from appliance.checkpoint.sources.address import WebAddress
from appliance.checkpoint.sources.options import Fetch, UnreachableError

_CHUNK: Final = 1 << 20
_PARTIAL: Final = 206
_RANGE_REFUSED: Final = 416


def fetch(address: WebAddress, job: Fetch) -> Path:
    """The downloaded file in the work folder. Raises UnreachableError."""
    host = httpx.URL(address.url).host
    if job.options.offline:
        raise UnreachableError(f"https://{host}", "offline")
    target = job.work_dir / f"{job.name}.download"
    try:
        _download(address.url, target, job)
    except httpx.HTTPStatusError as error:
        raise UnreachableError(f"https://{host}", f"answered {error.response.status_code} for {job.name}") from error
    except httpx.HTTPError as error:
        raise UnreachableError(f"https://{host}", f"{type(error).__name__} while fetching {job.name}") from error
    return target


def _download(url: str, target: Path, job: Fetch) -> None:
    have = target.stat().st_size if target.exists() else 0
    headers = {"Range": f"bytes={have}-"} if have else {}
    with httpx.stream(
        "GET", url, headers=headers, timeout=job.options.timeout_s, follow_redirects=True, trust_env=True
    ) as response:
        if have and response.status_code == _RANGE_REFUSED:
            return  # nothing is left to fetch; the digest decides
        response.raise_for_status()
        resumed = have if response.status_code == _PARTIAL else 0
        length = response.headers.get("content-length")
        job.progress.start(f"fetching {job.name}", resumed + int(length) if length else None, "bytes")
        job.progress.advance(resumed)
        with target.open("ab" if resumed else "wb") as file:
            for chunk in response.iter_bytes(_CHUNK):
                file.write(chunk)
                job.progress.advance(len(chunk))
