"""The HTTP requests of a workload: a completion for each prompt, or prompts together for a model that pools."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from appliance.bench.scenario import Scenario, Task
from appliance.bench.workload import WorkItem

_QUERY_WORDS: Final = 8


class AskedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One POST request: where, what, and when (seconds from the start). num_prompts: that its body holds."""

    path: str
    body: dict[str, Any]
    arrival_s: float = 0.0
    num_prompts: int = 1


def asked_requests(scenario: Scenario, items: Sequence[WorkItem]) -> list[AskedRequest]:
    """Returns the requests of one round. A request to a model that pools holds `batch_size` prompts."""
    if scenario.task in ("auto", "generate"):
        return [completion(scenario, item) for item in items]
    path, make = _POOLED[scenario.task]
    starts = range(0, len(items), scenario.batch_size)
    groups = [[item.prompt for item in items[start : start + scenario.batch_size]] for start in starts]
    return [
        AskedRequest(path=path, body=make(prompts), arrival_s=items[index].arrival_s, num_prompts=len(prompts))
        for index, prompts in enumerate(groups)
    ]


def completion(scenario: Scenario, item: WorkItem) -> AskedRequest:
    """Returns the request that continues one prompt."""
    body: dict[str, Any] = {"prompt": item.prompt, "max_tokens": item.output_len, "stream": scenario.stream}
    body["temperature"] = scenario.temperature
    if scenario.top_p < 1:
        body["top_p"] = scenario.top_p
    if scenario.ignore_eos:
        body["ignore_eos"] = True
    if scenario.stream:
        body["stream_options"] = {"include_usage": True}
    return AskedRequest(path="/v1/completions", body=body, arrival_s=item.arrival_s)


def _input(prompts: Sequence[Any]) -> dict[str, Any]:
    return {"input": prompts}


def _embeddings(prompts: Sequence[Any]) -> dict[str, Any]:
    return {"input": prompts, "encoding_format": "base64"}  # as OpenAI's client asks


def _pairs(prompts: Sequence[Any]) -> dict[str, Any]:
    return {"text_1": _query(prompts), "text_2": prompts}


def _documents(prompts: Sequence[Any]) -> dict[str, Any]:
    return {"query": _query(prompts), "documents": prompts}


def _query(prompts: Sequence[str]) -> str:
    return " ".join(prompts[0].split()[:_QUERY_WORDS])


_POOLED: Final[Mapping[Task, tuple[str, Callable[[Sequence[Any]], dict[str, Any]]]]] = {
    "embed": ("/v1/embeddings", _embeddings),
    "pool": ("/pooling", _input),
    "classify": ("/classify", _input),
    "score": ("/score", _pairs),
    "rerank": ("/rerank", _documents),
}
