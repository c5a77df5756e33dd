"""What HTTP costs: streamed chat from the scripted back-end, which emits as fast as it can.

PYTHONPATH=. python docs/benchmarks/streams.py [--connections 64] [--tokens 400] [--seconds 10] [--rate 0] [--servers 1]

One process counts what comes over raw sockets (epoll, no HTTP library). It tells tokens and events a second, and the
CPU microseconds a token of each process: on a busy machine these are the steady figures. Then one client at a time
shows what HTTP adds to the time to first token: the client's time, less the engine's own of the same requests.
"""

import argparse
import json
import os
import re
import selectors
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from appliance.engine.scripted import Script
from tests.server.harness import FIRST_BYTE, Server, running

ASCII = FIRST_BYTE + 128  # the script counts up through these tokens, control characters and all
_EVENT = b'"delta":{"content"'
_END = b"0\r\n\r\n"
_MODULES = {"engine": b"appliance.engine", "workers": b"appliance.server.workers"}
_TICKS = os.sysconf("SC_CLK_TCK")


class Client:
    """One connection that asks again as soon as it is answered."""

    def __init__(self, address: tuple[str, int], num_tokens: int) -> None:
        body = json.dumps(
            {
                "model": "scripted",
                "messages": [{"role": "user", "content": "go"}],
                "max_tokens": num_tokens,
                "ignore_eos": True,
                "stream": True,
            }
        ).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {address[0]}\r\ncontent-type: application/json\r\n"
        self._request = head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body
        self.connection = socket.create_connection(address)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.num_events = self.num_reads = 0

    def ask(self) -> None:
        self.connection.sendall(self._request)

    def take(self) -> None:
        data = self.connection.recv(1 << 16)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.num_reads += 1
        self.num_events += data.count(_EVENT)
        if data.endswith(_END):
            self.ask()


def throughput(server: Server, options: argparse.Namespace) -> None:
    clients = [Client(_address(server), options.tokens) for _ in range(options.connections)]
    ready = selectors.EpollSelector()
    for client in clients:
        ready.register(client.connection, selectors.EVENT_READ, client.take)
        client.ask()
    _serve(ready, min(2.0, options.seconds))
    counted, generated = _counts(clients), _figures(server)["generation_tokens_total"]
    cpu, began = _cpu_s(server), time.perf_counter()
    _serve(ready, options.seconds)
    wall = time.perf_counter() - began
    used = {name: seconds - cpu[name] for name, seconds in _cpu_s(server).items()}
    events, reads = (after - before for after, before in zip(_counts(clients), counted, strict=True))
    tokens = _figures(server)["generation_tokens_total"] - generated
    _say(f"{tokens / wall:10,.0f} tokens/s  {events / wall:10,.0f} events/s  {tokens / events:6.2f} tokens an event")
    _say(f"{tokens / reads:10.2f} tokens a read, {wall:.1f} s, {options.connections} connections")
    for name, seconds in used.items():
        _say(f"{name:>10}: {seconds / tokens * 1e6:6.1f} us CPU a token, {seconds / wall:5.0%} of a core")
    for client in clients:
        client.connection.close()


def first_token(server: Server, num_requests: int = 200) -> None:
    """Requests one after the other; the engine's time is from its own figures, queue and prefill."""
    client = Client(_address(server), 2)
    for _ in range(20):
        _one(client)
    before, cpu = _engine_s(server), _cpu_s(server)
    found = [_one(client) for _ in range(num_requests)]
    used = sum(seconds - cpu[name] for name, seconds in _cpu_s(server).items() if name not in ("client", "engine"))
    engine_s, count = (after - earlier for after, earlier in zip(_engine_s(server), before, strict=True))
    own = engine_s / count * 1e3
    median, p95 = statistics.median(found) * 1e3, sorted(found)[int(0.95 * num_requests)] * 1e3
    _say(f"time to first token: median {median:.2f} ms, p95 {p95:.2f} ms; the engine's own {own:.2f} ms on average")
    _say(f"so HTTP adds {median - own:.2f} ms at the median, {p95 - own:.2f} ms at p95 ({num_requests} requests)")
    _say(f"of which {used / num_requests * 1e3:.2f} ms of CPU a request, from its arrival to its end")


def _one(client: Client) -> float:
    """Seconds to the first content."""
    began = time.perf_counter()
    client.ask()
    seen = b""
    first = 0.0
    while not seen.endswith(_END):
        seen += client.connection.recv(1 << 16)
        if not first and seen.count(b'"content":"') > seen.count(b'"content":""'):
            first = time.perf_counter() - began
    return first


def _serve(ready: selectors.EpollSelector, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, _ in ready.select(0.1):
            key.data()


def _counts(clients: list[Client]) -> tuple[int, int]:
    """Events and reads."""
    return sum(client.num_events for client in clients), sum(client.num_reads for client in clients)


def _figures(server: Server) -> dict[str, float]:
    with server.http() as http:
        text = http.get("/metrics").text
    found = re.findall(r"^appliance_(\w+)\{[^}]*\} (\S+)$", text, re.M)
    return {name: float(value) for name, value in found}


def _engine_s(server: Server) -> tuple[float, float]:
    """Seconds in queue and prefill of all requests, and how many."""
    values = _figures(server)
    seconds = values["request_queue_seconds_sum"] + values["request_prefill_seconds_sum"]
    return seconds, values["request_prefill_seconds_count"]


def _cpu_s(server: Server) -> dict[str, float]:
    found = {"client": time.process_time()}
    parents = [server.process.pid]
    while parents:
        pid = parents.pop()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        name = next((kind for kind, module in _MODULES.items() if module in command), "server")
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS
        parents += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def _address(server: Server) -> tuple[str, int]:
    parts = urlsplit(server.url)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.0, help="most tokens a second that the back-end emits; 0: any")
    parser.add_argument("--servers", type=int, default=1, help="API processes")
    options = parser.parse_args()
    seats = options.connections
    with (
        tempfile.TemporaryDirectory() as folder,
        running(
            Path(folder),
            Script(vocab_size=ASCII, step_seconds=seats / options.rate if options.rate else 0.0),
            max_model_len=options.tokens + 64,
            max_num_seqs=seats,
            max_num_batched_tokens=4 * seats,
            num_blocks=seats * (options.tokens // 16 + 6),
            prefix_caching=False,
            front={"api_servers": options.servers},
        ) as server,
    ):
        _say(f"pid {server.process.pid}, engine {server.engine_pid()}")
        throughput(server, options)
        first_token(server)


if __name__ == "__main__":
    main()
