"""A running server with the scripted engine: a byte-level tokenizer, a small chat template, and replies by prompt."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from appliance.engine.scripted import Reply, Script
from appliance.server.http.routes import ROUTES, Route, path_pattern
from appliance.text.byte_alphabet import CHARACTER_OF_BYTE
from tests.engine.plans import scripted_plan

EOS, BOS = 0, 1
FIRST_BYTE = 2
TEMPLATE = (
    "{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}</>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WORDS = ("he", "ll", "hell", "hello", "wo", "wor", "worl", "world")


def byte_tokenizer() -> Tokenizer:
    """Every byte is a token, "hello" and "world" are too; 0 ends a sequence."""
    vocabulary = {"<|end|>": EOS, "<|begin|>": BOS}
    vocabulary |= {CHARACTER_OF_BYTE[byte]: FIRST_BYTE + byte for byte in range(256)}
    vocabulary |= {word: 258 + place for place, word in enumerate(WORDS)}
    merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("w", "o"), ("wo", "r"), ("wor", "l"), ("worl", "d")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False), AddedToken("<|begin|>", normalized=False)])
    return tokenizer


def encode(text: str) -> list[int]:
    ids: list[int] = byte_tokenizer().encode(text, add_special_tokens=False).ids
    return ids


def chat_prompt(user: str) -> str:
    return f"<user>{user}</><assistant>"


def says(user: str, answer: str) -> Reply:
    """A chat message and what the model says to it."""
    return Reply(encode(chat_prompt(user)), encode(answer))


def continues(prompt: str, answer: str) -> Reply:
    return Reply(encode(prompt), encode(answer))


def write_plan(folder: Path, script: Script, **changes: Any) -> Path:
    """plan.json, script and tokenizer in `folder`. `changes` as scripted_plan's."""
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_path": str(folder),
        "skip_tokenizer": False,
        "chat_template": TEMPLATE,
        "max_model_len": 512,
        "num_blocks": 256,
        "served_names": ["scripted", "alias"],
        "apis": ["openai", "responses", "batches", "anthropic", "sagemaker", "inference", "demo", "debug"],
        **changes,
    }
    settings["restart"] = {"policy": settings.pop("restart", "never")}
    settings["scheduler"] = {"policy": settings.pop("order", "fcfs")}
    plan = scripted_plan(folder, script, **settings)
    path = folder / "plan.json"
    path.write_bytes(msgspec.json.encode(plan))
    return path


def example_path(route: Route) -> str:
    """A path that the route matches."""
    return re.sub(r"\{\w+(:path)?\}", "scripted", route.path)


def methods_of(path: str) -> set[str]:
    """Of all routes that this path reaches, also where it stands for an id: /v1/responses/input_tokens."""
    return {method for route in ROUTES if path_pattern(route.path).fullmatch(path) for method in route.methods}


class Server:
    """One server process."""

    def __init__(self, plan: Path, state: Path) -> None:
        self._status = state / "status.jsonl"
        self.log = state / "log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "appliance.server", "--plan", str(plan), "--state", str(state)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def events(self) -> list[dict[str, Any]]:
        lines = self._status.read_text().splitlines() if self._status.exists() else []
        return [json.loads(line) for line in lines]

    def wait_for(self, event: str, timeout_s: float = 20.0) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            found = [each for each in self.events() if each["event"] == event]
            if found:
                return found[-1]
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.02)
        raise AssertionError(f"no {event!r} event:\n{self.log.read_text()}\n{self.events()}")

    @property
    def url(self) -> str:
        url: str = self.wait_for("listening")["url"]
        return url

    def http(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20.0, **options)

    def openai(self, key: str = "none", **options: Any) -> openai.OpenAI:
        options.setdefault("max_retries", 0)
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, _strict_response_validation=True, **options)

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return next(int(pid) for pid in children if b"appliance.engine" in Path(f"/proc/{pid}/cmdline").read_bytes())

    def sockets(self) -> Path:
        """The folder where the server and its engine meet."""
        arguments = Path(f"/proc/{self.engine_pid()}/cmdline").read_text().split("\0")
        return Path(arguments[arguments.index("--socket") + 1].removeprefix("ipc://")).parent

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


@contextmanager
def running(folder: Path, script: Script, *, wait: bool = True, **changes: Any) -> Iterator[Server]:
    """A server that is ready, unless `wait` is false."""
    server = Server(write_plan(folder, script, **changes), folder)
    try:
        if wait:
            server.wait_for("ready")
        yield server
    finally:
        server.close()


def wait_until(condition: Any, what: str, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
