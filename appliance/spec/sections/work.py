"""`batch` and `bench`: offline work on the same engine."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge

from appliance.spec.fields import REQUIRED, Section, field
from appliance.spec.scalars import (
    Auto,
    Count,
    Duration,
    Fraction,
    Name,
    NonNegativeFloat,
    NonNegativeInt,
    Port,
    PositiveFloat,
    PositiveInt,
    Text,
    Words,
)

Spread = Annotated[float, Ge(0), Words("a number from 0 to below 1")]


class BatchMetricsSection(Section):
    """Metrics while a batch runs."""

    doc: ClassVar[str] = "A metrics listener of the batch run. No key guards it."

    enabled: bool = field(False, "Serve /metrics while the batch runs.", apply="live", vllm="enable_metrics")
    host: Text = field("127.0.0.1", "Address.", apply="live", vllm="url")
    port: Port = field(8000, "Port.", apply="live")


class BatchSection(Section):
    """An OpenAI batch file."""

    doc: ClassVar[str] = "An OpenAI batch file, run on the planned engine. The command line may name the files."

    input_file: Text | None = field(None, "Requests, one JSON object a line: a path.", apply="live")
    output_file: Text | None = field(None, "Results: a path.", apply="live")
    error_file: Text | None = field(
        None, "Failed lines go here as well. Default: beside the output, with .errors in the name.", apply="live"
    )
    order: Literal["input", "completion"] = field(
        "input", "Results in the order of the requests, or as they finish.", apply="live"
    )
    resume: bool = field(True, "Go on where a killed run stopped; each line is answered exactly once.", apply="live")
    max_concurrency: Auto[PositiveInt] = field(
        "auto", "Requests handed to the engine at the same time.", auto="twice max_num_seqs", apply="live"
    )
    backend: Literal["local", "ray"] = field(
        "local", "Where engines run: one in the process of the batch, or several on a Ray cluster.", apply="live"
    )
    num_replicas: Auto[PositiveInt] = field(
        "auto", "Engines on the cluster, with backend ray.", auto="as many as its nodes have room for", apply="live"
    )
    metrics: BatchMetricsSection = field(BatchMetricsSection, "A metrics listener.")


class ScenarioSection(Section):
    """One benchmark."""

    doc: ClassVar[str] = "One benchmark: a workload and how it arrives."

    name: Name = field(REQUIRED, "Its name in results.", apply="live")
    kind: Literal["latency", "throughput", "serve"] = field(
        "serve", "One batch, all at once, or over HTTP at a rate.", apply="live"
    )
    task: Literal["auto", "generate", "embed", "pool", "classify", "score", "rerank"] = field(
        "auto", "What a request asks for.", auto="what the model is for", apply="live", since="0.2"
    )
    texts: bool = field(
        False, "Prompts are words in place of token ids, so that tokenization is measured too.", apply="live"
    )
    workload: Literal["random", "fixed", "shared-prefix", "trace"] = field(
        "random", "Where prompts come from.", apply="live", vllm="dataset_name"
    )
    trace_file: Text | None = field(
        None, "A JSONL file of requests, for the trace workload.", apply="live", vllm="dataset_path"
    )
    num_prompts: PositiveInt = field(100, "Requests.", apply="live")
    input_len: Count = field(512, "Prompt tokens.", apply="live", vllm="random_input_len")
    output_len: Count = field(128, "Output tokens.", apply="live", vllm="random_output_len")
    range_ratio: Spread = field(0.0, "Lengths vary by this share up and down.", apply="live", vllm="random_range_ratio")
    prefix_len: NonNegativeInt = field(
        0, "Tokens that prompts share, for shared-prefix.", apply="live", vllm="random_prefix_len"
    )
    num_prefixes: PositiveInt = field(1, "Different shared prefixes.", apply="live")
    batch_size: PositiveInt = field(
        1, "Prompts of a batch, for latency; prompts of a request to a model that pools.", apply="live"
    )
    request_rate: PositiveFloat | None = field(None, "Requests a second; null sends them all at once.", apply="live")
    burstiness: PositiveFloat = field(
        1.0, "Shape of the arrival gaps: 1 is Poisson, below is burstier, above is steadier.", apply="live"
    )
    max_concurrency: PositiveInt | None = field(
        None, "Most requests in flight: a closed loop. null is no limit.", apply="live"
    )
    num_warmups: NonNegativeInt = field(1, "Requests before measuring starts.", apply="live", vllm="num_iters_warmup")
    repeats: PositiveInt = field(1, "Runs; the median and the spread are reported.", apply="live", vllm="num_iters")
    seed: NonNegativeInt = field(0, "Seed of prompts and arrivals.", apply="live")
    temperature: NonNegativeFloat = field(0.0, "Temperature of the requests.", apply="live")
    top_p: Fraction = field(1.0, "Top-p of the requests.", apply="live")
    ignore_eos: bool = field(True, "Generate exactly output_len tokens.", apply="live")
    stream: bool = field(True, "Ask for a stream, for serve.", apply="live")
    max_duration: Duration | None = field(None, "End the run after this. null is no limit.", apply="live")


class BenchSection(Section):
    """Benchmarks."""

    doc: ClassVar[str] = "Benchmarks of this deployment."

    scenarios: list[ScenarioSection] = field([], "What is measured.", apply="live")
    output_dir: Text | None = field(None, "Where results go. Default: the working folder.", apply="live")
