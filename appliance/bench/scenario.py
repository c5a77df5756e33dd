"""What is measured: a scenario, the presets that repeat the peers' workloads, and the SLO it is held against."""

from typing import Literal

import msgspec

Kind = Literal["latency", "throughput", "serve"]
WorkloadName = Literal["random", "fixed", "shared-prefix", "trace"]


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One benchmark. Field names and defaults are those of `bench.scenarios` in the spec; durations are seconds."""

    name: str
    kind: Kind = "serve"
    workload: WorkloadName = "random"
    trace_file: str | None = None
    num_prompts: int = 100
    input_len: int = 512
    output_len: int = 128
    range_ratio: float = 0.0
    prefix_len: int = 0
    num_prefixes: int = 1
    batch_size: int = 1
    request_rate: float | None = None
    burstiness: float = 1.0
    max_concurrency: int | None = None
    num_warmups: int = 1
    repeats: int = 1
    seed: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    ignore_eos: bool = True
    stream: bool = True
    max_duration: float | None = None


# The workloads of docs/benchmarks: one stream, a full batch, closed-loop clients, a shared prefix.
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
            input_len=64,
            prefix_len=1024,
            output_len=32,
            stream=False,
            repeats=3,
        ),
    )
}
