"""What is measured: a scenario, the presets that repeat the peers' workloads, and the SLO it is held against."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

Kind = Literal["latency", "throughput", "serve"]
# What a request asks for. auto: what the model is for; pool: a vector of each token.
Task = Literal["auto", "generate", "embed", "pool", "classify", "score", "rerank"]
Count = Annotated[int, Meta(ge=1)]
Whole = Annotated[int, Meta(ge=0)]
Positive = Annotated[float, Meta(gt=0)]
WorkloadName = Literal["random", "fixed", "shared-prefix", "trace"]


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One benchmark. Field names and defaults are those of `bench.scenarios` in the spec; durations are seconds.

    input_len holds the whole prompt, the shared prefix too; range_ratio varies what is not shared. batch_size counts
    the prompts of a batch of `latency`, and those of a request to a model that pools. texts: prompts are words.
    """

    name: str
    kind: Kind = "serve"
    task: Task = "auto"
    workload: WorkloadName = "random"
    texts: bool = False
    trace_file: str | None = None
    num_prompts: Count = 100
    input_len: Count = 512
    output_len: Count = 128
    range_ratio: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    prefix_len: Whole = 0
    num_prefixes: Count = 1
    batch_size: Count = 1
    request_rate: Positive | None = None
    burstiness: Positive = 1.0
    max_concurrency: Count | None = None
    num_warmups: Whole = 1
    repeats: Count = 1
    seed: Whole = 0
    temperature: Annotated[float, Meta(ge=0)] = 0.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    ignore_eos: bool = True
    stream: bool = True
    max_duration: Positive | None = None


def _pooled(name: str, *, task: Task, num_prompts: int, input_len: int, batch_size: int = 1) -> Scenario:
    return Scenario(
        name=name,
        task=task,
        workload="fixed",
        texts=True,
        num_prompts=num_prompts,
        input_len=input_len,
        batch_size=batch_size,
        max_concurrency=16,
        num_warmups=16,
        repeats=3,
        stream=False,
    )


# The workloads of docs/benchmarks: one stream, a full batch, closed-loop clients, a shared prefix; and for models that
# pool, short and long texts from 16 clients.
PRESETS: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="single", workload="fixed", num_prompts=5, input_len=512, output_len=129, max_concurrency=1, repeats=3
        ),
        Scenario(
            name="offline64",
            kind="throughput",
            num_prompts=64,
            input_len=320,
            range_ratio=0.6,
            output_len=128,
            stream=False,
            repeats=3,
        ),
        Scenario(
            name="online16",
            num_prompts=32,
            input_len=320,
            range_ratio=0.6,
            output_len=128,
            max_concurrency=16,
            repeats=3,
        ),
        Scenario(
            name="shared-prefix",
            kind="throughput",
            workload="shared-prefix",
            num_prompts=32,
            input_len=1088,
            prefix_len=1024,
            output_len=32,
            stream=False,
            repeats=3,
        ),
        _pooled("embed32", task="embed", num_prompts=512, input_len=32),
        _pooled("embed512", task="embed", num_prompts=96, input_len=512),
        _pooled("rerank32", task="rerank", num_prompts=512, input_len=128, batch_size=32),
    )
}
