"""One line of an OpenAI batch file: what it asks, or what is wrong with it."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from appliance.base.hashing import sha256_hex
from appliance.base.texts import MARK, without_mark

GENERATING = ("/v1/chat/completions", "/v1/completions")  # the endpoints of models that generate
POOLING = (  # and of those that pool
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/score",
    "/rerank",
    "/classify",
    "/pooling",
    "/v2/embed",
    "/v2/rerank",
)
ENDPOINTS = (*GENERATING, *POOLING)
MAX_LINE_BYTES = 64 << 20
_FIELDS = frozenset({"custom_id", "method", "url", "body"})
_DIGEST_CHARACTERS = 16


@dataclass(frozen=True, slots=True)
class InputLine:
    """`number` counts lines of the file from 1, empty ones too."""

    number: int
    text: bytes

    @property
    def key(self) -> str:
        """Names the line in the output: its number, and a digest by which another input is recognised."""
        return f"batch_req_{self.number}_{sha256_hex(self.text)[:_DIGEST_CHARACTERS]}"


@dataclass(frozen=True, slots=True)
class BatchRequest:
    custom_id: str
    url: str
    body: bytes  # JSON


class LineError(Exception):
    """A line that cannot be run. `code` is for programs; `custom_id` is known when that much could be read."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.custom_id = custom_id


def read_lines(path: Path) -> Iterator[InputLine]:
    """Lines that are not blank, one at a time: the file may be larger than memory. Raises NotUtf8Error for UTF-16."""
    with path.open("rb") as stream:
        for number, text in enumerate(stream, 1):
            # Files that were put one behind the other have marks in the middle.
            text = without_mark(text, "the input") if number == 1 else text.removeprefix(MARK)
            if stripped := text.strip():
                yield InputLine(number, stripped)


def parse(line: InputLine) -> BatchRequest:
    """Raises LineError."""
    if len(line.text) > MAX_LINE_BYTES:
        raise LineError("line_too_long", f"the line has {len(line.text)} bytes; {MAX_LINE_BYTES} are allowed")
    try:
        data: Any = msgspec.json.decode(line.text)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError("invalid_json", f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise LineError("invalid_line", "a line is a JSON object with custom_id, method, url and body")
    custom_id = data.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        raise LineError("invalid_custom_id", "custom_id must be a string that is not empty")
    return _checked(data, custom_id)


def _checked(data: dict[str, Any], custom_id: str) -> BatchRequest:
    if unknown := sorted(set(data) - _FIELDS):
        raise LineError(
            "unknown_field", f"unknown field {unknown[0]!r}; known: {', '.join(sorted(_FIELDS))}", custom_id
        )
    if data.get("method") != "POST":
        raise LineError("invalid_method", f'method must be "POST", not {data.get("method")!r}', custom_id)
    url, body = data.get("url"), data.get("body")
    if url not in ENDPOINTS:
        raise LineError("invalid_url", f"url must be one of {', '.join(ENDPOINTS)}, not {url!r}", custom_id)
    if not isinstance(body, dict):
        raise LineError("invalid_body", "body must be a JSON object", custom_id)
    if body.get("stream"):
        raise LineError("invalid_body", "stream is not possible in a batch", custom_id)
    return BatchRequest(custom_id, url, msgspec.json.encode(body))
