"""Bodies that come compressed: taken, bounded by what they become, or refused by the name of their encoding."""

import gzip
import json
import time
import zlib

import httpx
import pytest

from tests.server.harness import Server
from tests.server.test_bad_requests import BODIES, POSTS, is_error

CHAT = json.dumps(BODIES["/v1/chat/completions"]).encode()


def zipped(body: bytes, level: int = 9) -> bytes:
    """Without the time of day, so that every worker of a run collects the same cases."""
    return gzip.compress(body, level, mtime=0)


def post(http: httpx.Client, body: bytes, encoding: str, path: str = "/v1/chat/completions") -> httpx.Response:
    return http.post(path, content=body, headers={"content-type": "application/json", "content-encoding": encoding})


@pytest.mark.parametrize(("encoding", "body"), [
    ("gzip", zipped(CHAT)), ("x-gzip", zipped(CHAT)), ("GZIP", zipped(CHAT, 0)),
    ("deflate", zlib.compress(CHAT)), ("identity", CHAT), ("identity, gzip", zipped(CHAT)), ("", CHAT),
])  # fmt: skip
def test_a_compressed_body_is_read(http: httpx.Client, encoding: str, body: bytes) -> None:
    assert post(http, body, encoding).json()["choices"][0]["message"]["content"] == "hello world"


def test_it_is_read_however_it_is_cut(http: httpx.Client) -> None:
    body = zipped(CHAT)
    pieces = (body[place : place + 1] for place in range(len(body)))
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    assert http.post("/v1/chat/completions", content=pieces, headers=headers).status_code == 200


def test_sagemaker_reads_it_once(http: httpx.Client) -> None:
    answer = post(http, zipped(CHAT), "gzip", "/invocations")
    assert answer.json()["choices"][0]["message"]["content"] == "hello world"


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "gzip, br", "x" * 200])
@pytest.mark.parametrize("path", POSTS)
def test_other_encodings_are_refused_by_name(http: httpx.Client, path: str, encoding: str) -> None:
    answer = post(http, b"\x28\xb5\x2f\xfd", encoding, path)
    error = is_error(answer, 415)
    assert encoding[:30] in error["message"]
    assert answer.headers["accept-encoding"] == "gzip, deflate"


def test_files_come_plain(http: httpx.Client) -> None:
    headers = {"content-encoding": "gzip"}
    answer = http.post("/v1/files", files={"file": b"x"}, data={"purpose": "batch"}, headers=headers)
    assert is_error(answer, 415)["code"] == "content_encoding"


@pytest.mark.parametrize(("body", "what"), [
    (CHAT, "not gzip"), (zipped(CHAT)[:-4], "cut off"), (zipped(CHAT)[:20], "cut off"), (b"", "cut off"),
    (zipped(CHAT) + b"x", "after the end"), (zipped(CHAT) * 2, "after the end"),
    (zipped(CHAT)[:-8] + bytes(8), "not gzip"), (zipped(b"{"), "not JSON"), (zipped(b""), "empty"),
])  # fmt: skip
def test_what_is_broken_is_said(http: httpx.Client, body: bytes, what: str) -> None:
    assert what in is_error(post(http, body, "gzip"))["message"]


def bomb(size: int) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return b"".join([packer.compress(b" " * (1 << 20)) for _ in range(size >> 20)]) + packer.flush()


def test_a_bomb_is_bounded_by_what_it_becomes(server: Server) -> None:
    """A gigabyte in one megabyte is given up at the limit of plain bytes."""
    body = bomb(1 << 30)
    assert len(body) < 2 << 20
    with server.http() as http:
        began = time.monotonic()
        assert is_error(post(http, body, "gzip"), 413)["code"] == "body_too_large"
        assert time.monotonic() - began < 2.0
        assert http.get("/livez").status_code == 200
