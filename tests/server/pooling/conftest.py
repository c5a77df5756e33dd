"""Tiny models that pool, each served once by the application in this process, without sockets."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import httpx
import openai
import pytest
import torch
import uvicorn

from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan
from appliance.server.process.inproc_api import inproc_api
from tests.models.tiny_pooled import make_pooled, write_sentence_files, write_tokenizer

T = TypeVar("T")


class Served:
    """An application on a thread with an event loop of its own."""

    def __init__(self, plan: EnginePlan, oracle: torch.nn.Module, folder: Path) -> None:
        self.plan, self.oracle, self.folder = plan, oracle, folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._api = inproc_api(plan, lambda phase: None)
        self._app = self._wait(self._api.__aenter__())
        self._listener: uvicorn.Server | None = None

    @property
    def url(self) -> str:
        """The address of a socket on which the application answers too, from the first time that it is asked for."""
        if self._listener is None:
            self._listener = uvicorn.Server(uvicorn.Config(self._app, port=0, lifespan="off", log_level="warning"))
            self._serving = asyncio.run_coroutine_threadsafe(self._listener.serve(), self._loop)
            while not self._listener.started and not self._serving.done():
                time.sleep(0.01)
        host, port = self._listener.servers[0].sockets[0].getsockname()
        return f"http://{host}:{port}"

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self._send("POST", path, json=body)

    def post_bytes(self, path: str, body: bytes) -> httpx.Response:
        return self._send("POST", path, content=body, headers={"content-type": "application/json"})

    def get(self, path: str) -> httpx.Response:
        return self._send("GET", path)

    def ok(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self.post(path, body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def refusal(self, path: str, **body: Any) -> dict[str, Any]:
        answer = self.post(path, body)
        assert answer.status_code == 400, answer.text
        error: dict[str, Any] = answer.json()["error"]
        return error

    def openai(self, ask: Callable[[openai.AsyncOpenAI], Awaitable[T]]) -> T:
        """What OpenAI's own client is answered."""

        async def call() -> T:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(self._app)) as http:
                client = openai.AsyncOpenAI(base_url="http://batch/v1", api_key="none", http_client=http)
                return await ask(client)

        found: T = self._wait(call())
        return found

    def close(self) -> None:
        if self._listener is not None:
            self._listener.should_exit = True
            self._serving.result(60)
        self._wait(self._api.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url="http://batch") as client:
                return await client.request(method, path, **options)

        found: httpx.Response = self._wait(send())
        return found

    def _wait(self, work: Any) -> Any:
        done: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return done.result(60)


SENTENCE = {"prompts": {"query": "who is ", "document": "the "}, "default_prompt_name": None}


def plan_of(folder: Path, model: str = "") -> EnginePlan:
    """The plan of a folder's model in f32."""
    spec = folder / "deployment.yaml"
    spec.write_text(
        "api_version: appliance/v1\nkind: Deployment\nname: pooled\n"
        f"model: {{source: {folder}, dtype: float32, {model}}}\n"
        "loading: {keep_packed: false}\n"
    )
    return prepare(spec).plan


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Served]]:
    """serve(name, model): a tiny model of tests.models.tiny_pooled, with further fields of the spec's model."""
    kept: dict[tuple[str, str], Served] = {}

    def get(name: str, model: str = "") -> Served:
        if (name, model) not in kept:
            folder = tmp_path_factory.mktemp(name)
            oracle = make_pooled(name, folder)
            write_tokenizer(folder)
            if name == "bert-mean":
                write_sentence_files(folder, **SENTENCE)
            kept[name, model] = Served(plan_of(folder, model), oracle, folder)
        return kept[name, model]

    yield get
    for served in kept.values():
        served.close()


@pytest.fixture
def embedder(serve: Callable[..., Served]) -> Served:
    return serve("bert-mean")
