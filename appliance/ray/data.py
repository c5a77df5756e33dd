"""A stage of Ray Data that answers the lines of OpenAI batch files by the spec of a deployment.

lines = ray.data.read_text("requests.jsonl")
answers = lines.map_batches(AnswerLines, **AnswerLines.arguments("deployment.yaml", concurrency=2))
"""

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from appliance.jobs.answerer import Answerer, asgi_answerer
from appliance.jobs.answering import answer_line
from appliance.jobs.lines import InputLine, LineError, parse
from appliance.ray.node import NodeWork
from appliance.ray.placing import EngineNeeds
from appliance.server.process.inproc_api import inproc_api
from appliance.spec import load_spec

ResultT = TypeVar("ResultT")


class AnswerLines:
    """A callable for `map_batches`: an engine in the worker's process, which plans on its node.

    A batch has the column `text`, each a line of an OpenAI batch file, as `ray.data.read_text` gives them. It gains the
    column `answer`: the line that `appliance batch` writes for it, with 0 as the number of the line in its id.
    """

    def __init__(self, work: NodeWork) -> None:
        """Loads the model. Raises ApplianceError."""
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="batch engine", daemon=True).start()
        self._stack = AsyncExitStack()
        self._answer = self._wait(self._load(work))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Answers the rows of a batch together. Raises BatchStoppedError when the engine is gone."""
        return {**batch, "answer": np.array(self._wait(self._answer_all(batch["text"])), object)}

    @staticmethod
    def arguments(
        spec: str | Path, overrides: Sequence[str] = (), *, concurrency: int = 1, batch_size: int | None = None
    ) -> dict[str, Any]:
        """Returns the arguments of `map_batches`, with what an engine needs of its node by a plan that is made here.

        concurrency: engines. batch_size: rows; None for as many as `batch.max_concurrency`. Raises ApplianceError.
        """
        loaded = load_spec(spec, overrides)
        work = NodeWork(text=loaded.text, file=str(Path(spec).resolve()), overrides=tuple(overrides))
        plan = work.plan()
        needs = EngineNeeds.of(plan)
        found = {
            "fn_constructor_args": (work.for_grant(needs.num_cores, None),),
            "batch_size": batch_size or plan.batch["max_concurrency"],
            "concurrency": concurrency,
            "num_cpus": needs.num_cores,
        }
        return {**found, "num_gpus": needs.num_accelerators} if needs.num_accelerators else found

    def _wait(self, coroutine: Coroutine[Any, Any, ResultT]) -> ResultT:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _load(self, work: NodeWork) -> Answerer:
        plan = await asyncio.to_thread(work.plan)
        return asgi_answerer(await self._stack.enter_async_context(inproc_api(plan, lambda phase: None)))

    async def _answer_all(self, lines: Sequence[str]) -> list[str]:
        return await asyncio.gather(*(self._answer_text(line) for line in lines))

    async def _answer_text(self, text: str) -> str:
        line = InputLine(0, text.encode())
        try:
            request: Any = parse(line)
        except LineError as error:
            request = error
        return msgspec.json.encode((await answer_line(line, request, self._answer)).line).decode()
