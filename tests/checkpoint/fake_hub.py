"""A model hub on the loopback interface: model info, and resolve with entity tags and ranges."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """repos: files by repository. requests: "METHOD path" with the range. cut: bytes after which one GET breaks off."""

    repos: dict[str, dict[str, bytes]]
    url: str = ""
    token: str | None = None
    cut: int | None = None
    kind: str = "application/octet-stream"  # of files
    requests: list[str] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub  # set by `serve` in a subclass

    def do_HEAD(self) -> None:
        self._answer(is_head=True)

    def do_GET(self) -> None:
        self._answer(is_head=False)

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self, is_head: bool) -> None:
        hub, path, wanted = self.hub, self.path.split("?")[0].lstrip("/"), self.headers.get("Range")
        hub.requests.append(f"{self.command} {path}" + (f" {wanted}" if wanted else ""))
        if hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}":
            return self._send(401, b"", {"X-Error-Code": "GatedRepo", "X-Error-Message": "gated"})
        if path.startswith("api/models/"):
            return self._info(path.removeprefix("api/models/"))
        return self._file(path, is_head, wanted)

    def _info(self, path: str) -> None:
        repo, _, revision = path.partition("/revision/")
        if repo not in self.hub.repos:
            return self._send(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if revision not in ("", "main", "v1", COMMIT):
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        info = {"id": repo, "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.hub.repos[repo]]}
        return self._send(200, json.dumps(info).encode(), {"Content-Type": "application/json"})

    def _file(self, path: str, is_head: bool, wanted: str | None) -> None:
        repo, _, rest = path.partition("/resolve/")
        content = self.hub.repos.get(repo, {}).get(rest.partition("/")[2])
        if content is None:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        headers = {
            "ETag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
            "Content-Type": self.hub.kind,
        }
        start = int(wanted.removeprefix("bytes=").partition("-")[0]) if wanted else 0
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        return self._send(206 if start else 200, content[start:], headers, is_head)

    def _send(self, status: int, body: bytes, headers: dict[str, str], is_head: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if is_head:
            return
        if self.hub.cut is not None and len(body) > self.hub.cut:
            body, self.hub.cut = body[: self.hub.cut], None
            self.close_connection = True
        self.wfile.write(body)


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
