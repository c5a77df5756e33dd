"""A streaming HTTP/1.1 client that costs little: client and server often share the cores that are measured.

httptools parses the response; an event's JSON is decoded only when it carries usage. One connection a request in
flight, kept alive and reused.
"""

import asyncio
import ssl
import time
from typing import Any
from urllib.parse import urlsplit

import httptools
import msgspec
import orjson

from appliance.base.errors import ApplianceError
from appliance.bench.asked import AskedRequest
from appliance.bench.record import MeasuredRequest


class BenchTarget(msgspec.Struct, frozen=True, kw_only=True):
    """An OpenAI server. `url` is its root, with or without /v1. extra: fields merged into every body."""

    url: str
    model: str
    api_key: str | None = None
    timeout_s: float = 1800.0
    extra: dict[str, Any] = {}


class _Exchange(asyncio.Protocol):
    """One connection. `begin` arms it for a request; `done` resolves when the response is complete."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.done: asyncio.Future[None] | None = None
        self._reset(MeasuredRequest(started=0.0))

    def _reset(self, record: MeasuredRequest) -> None:
        self.record = record
        self.body = bytearray()
        self.streaming = False
        self.status = 0
        self.keep_alive = True
        self._parser = httptools.HttpResponseParser(self)

    def begin(self, record: MeasuredRequest, request: bytes) -> "asyncio.Future[None]":
        assert self.transport is not None
        self._reset(record)
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.done

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._finish(f"bad response: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        self.keep_alive = False
        self._finish(f"connection lost: {exc}" if exc else "connection closed before the answer was complete")

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"content-type":
            self.streaming = value.startswith(b"text/event-stream")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.keep_alive = self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self.body += data
        if self.streaming and self.status == 200:
            self._events(time.perf_counter())

    def on_message_complete(self) -> None:
        if self.status != 200:
            self._finish(f"status {self.status}: {bytes(self.body[:300]).decode(errors='replace')}")
            return
        if not self.streaming:
            _read_usage(self.record, self.body)
        self._finish(None)

    def _events(self, now: float) -> None:
        """Takes whole events off the buffer; arrivals in one read count as one arrival of several tokens."""
        end = self.body.rfind(b"\n\n")
        if end < 0:
            return
        events = bytes(self.body[: end + 2]).split(b"\n\n")
        del self.body[: end + 2]
        arrived = 0
        for event in events:
            if not event.startswith(b"data:") or event.endswith(b"[DONE]"):
                continue
            if b'"error"' in event[:20]:
                self.record.error = event[5:300].decode(errors="replace").strip()
            elif b'"choices":[]' not in event and b'"choices": []' not in event:
                arrived += 1
            if b'"usage":' in event and b'"usage":null' not in event and b'"usage": null' not in event:
                _read_usage(self.record, event[5:])
        if arrived:
            self.record.token_times.append(now)
            self.record.token_counts.append(arrived)

    def _finish(self, error: str | None) -> None:
        if self.done is None or self.done.done():
            return
        self.record.finished = time.perf_counter()
        self.record.error = self.record.error or error
        self.done.set_result(None)


class BenchClient:
    """Sends requests to a target, and measures them. Use as an async context manager."""

    def __init__(self, target: BenchTarget) -> None:
        parts = urlsplit(target.url if "//" in target.url else f"http://{target.url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ApplianceError(f"not a URL of a server: {target.url!r}", hint="such as http://127.0.0.1:8000")
        self._target = target
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._host, self._port = parts.hostname, parts.port or (443 if self._tls else 80)
        self._root = parts.path.rstrip("/").removesuffix("/v1")
        self._idle: list[_Exchange] = []

    async def __aenter__(self) -> "BenchClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        for exchange in self._idle:
            if exchange.transport is not None:
                exchange.transport.close()

    async def send(self, asked: AskedRequest) -> MeasuredRequest:
        """Runs one request to its end. Errors are recorded, never raised."""
        request = self._encode(asked)
        record = MeasuredRequest(started=time.perf_counter(), num_prompts=asked.num_prompts)
        try:
            exchange = await self._answered(record, request)
        except (OSError, TimeoutError) as error:
            record.finished = time.perf_counter()
            record.error = f"{type(error).__name__}: {error}"
            return record
        if exchange.keep_alive:
            self._idle.append(exchange)
        elif exchange.transport is not None:
            exchange.transport.close()
        if not record.output_tokens:
            record.output_tokens = sum(record.token_counts)
        return record

    async def _answered(self, record: MeasuredRequest, request: bytes) -> _Exchange:
        """A server may close an idle connection just when we use it again; a new one is then asked instead."""
        while self._idle:
            exchange = self._idle.pop()
            if exchange.transport is None or exchange.transport.is_closing():
                continue
            await asyncio.wait_for(exchange.begin(record, request), self._target.timeout_s)
            if record.error is None or exchange.status:
                return exchange
            record.error = None
        exchange = await self._connection()
        await asyncio.wait_for(exchange.begin(record, request), self._target.timeout_s)
        return exchange

    async def _connection(self) -> _Exchange:
        loop = asyncio.get_running_loop()
        _, exchange = await loop.create_connection(_Exchange, self._host, self._port, ssl=self._tls)
        return exchange

    def _encode(self, asked: AskedRequest) -> bytes:
        payload = orjson.dumps({"model": self._target.model, **asked.body, **self._target.extra})
        key = f"Authorization: Bearer {self._target.api_key}\r\n" if self._target.api_key else ""
        head = (
            f"POST {self._root}{asked.path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\n{key}Content-Length: {len(payload)}\r\n\r\n"
        )
        return head.encode() + payload


def _read_usage(record: MeasuredRequest, data: bytes | bytearray) -> None:
    try:
        answer = orjson.loads(data)
        usage, metrics = answer.get("usage") or {}, answer.get("metrics") or {}
    except (orjson.JSONDecodeError, AttributeError) as error:
        record.error = f"the answer is not a JSON object: {error}"
        return
    record.input_tokens = usage.get("prompt_tokens") or usage.get("total_tokens") or 0  # Jina's have the total alone
    record.output_tokens = usage.get("completion_tokens") or 0
    record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    drafts = metrics.get("speculative_decoding") or {}  # with endpoints.responses.per_request_spec_decode_metrics
    record.num_drafts = drafts.get("num_spec_steps") or 0
    record.accepted_tokens = drafts.get("num_accepted_draft_tokens") or 0
