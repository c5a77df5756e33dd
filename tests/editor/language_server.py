"""A client of yaml-language-server: enough of LSP to open a document and ask about it."""

import json
import queue
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

TIMEOUT_S = 60.0
_SETTINGS = {"yaml": {"schemaStore": {"enable": False}, "validate": True, "hover": True, "completion": True}}


class LanguageServer:
    """Speaks JSON-RPC over the pipes of a process."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answers: queue.Queue[dict[str, Any]] = queue.Queue()
        self._published: queue.Queue[dict[str, Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._last = 0

    def __enter__(self) -> Self:
        capabilities = {
            "textDocument": {"hover": {"contentFormat": ["plaintext"]}},
            "workspace": {"configuration": True},
        }
        self.ask("initialize", {"processId": None, "rootUri": None, "capabilities": capabilities})
        self._tell("initialized", {})
        self._tell("workspace/didChangeConfiguration", {"settings": _SETTINGS})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    def open(self, file: Path) -> list[dict[str, Any]]:
        """The diagnostics of a document."""
        document = {"uri": file.as_uri(), "languageId": "yaml", "version": 1, "text": file.read_text()}
        self._tell("textDocument/didOpen", {"textDocument": document})
        while True:
            published = self._published.get(timeout=TIMEOUT_S)
            if published["uri"] == file.as_uri():
                found: list[dict[str, Any]] = published["diagnostics"]
                return found

    def at(self, method: str, file: Path, line: int, character: int) -> Any:
        """hover or completion; both count from 0."""
        place = {"line": line, "character": character}
        return self.ask(f"textDocument/{method}", {"textDocument": {"uri": file.as_uri()}, "position": place})

    def ask(self, method: str, params: Any) -> Any:
        self._last += 1
        self._send({"id": self._last, "method": method, "params": params})
        while True:
            answer = self._answers.get(timeout=TIMEOUT_S)
            if answer["id"] == self._last:
                assert "error" not in answer, answer
                return answer["result"]

    def _tell(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def _send(self, body: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0", **body}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        while header := self._process.stdout.readline():
            length = int(header.split(b":")[1])
            while self._process.stdout.readline() not in (b"\r\n", b""):
                continue
            self._take(json.loads(self._process.stdout.read(length)))

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("method") == "textDocument/publishDiagnostics":
            self._published.put(message["params"])
        elif "method" in message and "id" in message:  # the server asks: for its settings, or to register something
            items = message.get("params", {}).get("items", [])
            self._send({"id": message["id"], "result": [_SETTINGS.get(item.get("section")) for item in items]})
        elif "id" in message:
            self._answers.put(message)
