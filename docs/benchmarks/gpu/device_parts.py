"""The parts of device_run.py. Each returns plain values for its JSON, and raises where the device is wrong."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams
from appliance.plan.hashes import with_hashes
from appliance.plan.prepare import prepare
from appliance.plan.types import EnginePlan

SPEC: Final = """\
api_version: appliance/v1
kind: Deployment
name: device
model: {{source: {source}, skip_tokenizer_init: true, served_names: [device]}}
"""
LLAMA: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
BIG: Final = LLAMA | {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 16384,
}  # fmt: skip
SMALL: Final = LLAMA | {
    "hidden_size": 896, "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
    "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 16384, "tie_word_embeddings": True,
}  # fmt: skip
TINY: Final = LLAMA | {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 512, "max_position_embeddings": 512,
}  # fmt: skip
MIXTURE: Final = TINY | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
# What is compared: a config, and the overrides that say the form of weights and caches.
COMPARED: Final[dict[str, tuple[Mapping[str, Any], tuple[str, ...]]]] = {
    "dense": (TINY, ()), "experts": (MIXTURE, ()), "int8": (TINY, ("model.quantization=int8",)),
    "int4": (TINY, ("model.quantization=int4",)), "fp8 cache": (TINY, ("cache.dtype=fp8",)),
}  # fmt: skip
TAIL: Final = 16  # steps at the end that are not measured
NEAR: Final = 0.05  # of a log-probability: sums in another order, through all layers
DECODES: Final = ((1, 512, 183.0), (16, 512, 2550.0), (64, 512, 8200.0), (256, 512, 18300.0), (16, 8192, 1330.0))
SMALL_DECODES: Final = ((1, 512, 1500.0), (16, 512, 16000.0), (64, 512, 48000.0), (256, 512, 115000.0))
OFFLINE, SMALL_OFFLINE = 37000.0, 250000.0  # tokens in and out
PREFILLS: Final = ((512, 40000.0), (4096, 41000.0))


@dataclass(frozen=True, slots=True)
class Case:
    """dry: tiny models on torch's CPU device, whose set is `torch`."""

    dry: bool
    kernel_set: str
    models: tuple[str, ...]

    @classmethod
    def of(cls, *, dry: bool, kernel_set: str, models: Sequence[str]) -> "Case":
        return cls(dry, "torch" if dry else kernel_set, tuple(models))


Values = dict[str, Any]


def plan_of(folder: Path, source: str, *overrides: str) -> EnginePlan:
    spec = folder / "deployment.yaml"
    spec.write_text(SPEC.format(source=json.dumps(source)))
    return prepare(spec, overrides).plan


@contextmanager
def random_model(config: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """A folder for specs, and one with a config, whose weights are random numbers of a seed."""
    with tempfile.TemporaryDirectory() as name:
        model = Path(name, "model")
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        yield Path(name), str(model)


def generate(
    engine: InprocEngine, prompts: Sequence[Sequence[int]], num_tokens: int, num_logprobs: int | None = None
) -> tuple[list[list[int]], list[list[float]], list[float]]:
    """Returns the tokens of each prompt, their log-probabilities, and when each step ended that gave tokens."""
    tokens: list[list[int]] = [[] for _ in prompts]
    logprobs: list[list[float]] = [[] for _ in prompts]
    times = [time.perf_counter()]
    for number, prompt in enumerate(prompts):
        sampling = SamplingParams(max_tokens=num_tokens, temperature=0.0, ignore_eos=True, logprobs=num_logprobs)
        engine.send(GenerateRequest(request_id=str(number), prompt_token_ids=list(prompt), sampling=sampling))
    while engine.has_work:
        for event in engine.receive():
            if not isinstance(event, OutputBatch):
                continue
            times.append(time.perf_counter())
            for output in event.outputs:
                if output.error is not None:
                    raise RuntimeError(output.error)
                tokens[int(output.request_id)] += output.token_ids
                logprobs[int(output.request_id)] += [each.logprobs[0] for each in output.logprobs or ()]
    return tokens, logprobs, times


def some_prompts(count: int, length: int, vocabulary: int) -> list[list[int]]:
    prompts: list[list[int]] = np.random.default_rng(count + length).integers(3, vocabulary, (count, length)).tolist()
    return prompts


def compared(folder: Path, source: str, case: Case, prompts: list[list[int]], *overrides: str) -> Values:
    """Sets the device beside the CPU: equal tokens, and how far log-probabilities are apart until tokens differ."""
    found = []
    on_cpu = ("hardware.device=cpu", "hardware.kernels.quantize_activations=false")
    for choice in ((*on_cpu,), (f"hardware.kernels.kernel_set={case.kernel_set}",)):
        plan = plan_of(folder, source, *overrides, *choice)
        with InprocEngine.from_plan(plan) as engine:
            found.append(generate(engine, prompts, 16, 0))
    (tokens, logprobs, _), (own_tokens, own_logprobs, _) = found
    same, far = 0, 0.0
    for ours, theirs, values, others in zip(own_tokens, tokens, own_logprobs, logprobs, strict=True):
        until = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))
        same += until
        far = max([far, *(abs(a - b) for a, b in zip(values[:until], others[:until], strict=True))])
    return {"tokens": sum(map(len, tokens)), "equal": same, "furthest_logprob": round(far, 5)}


def parity(case: Case) -> Values:
    """Raises RuntimeError where log-probabilities of equal tokens are too far apart, after all were compared."""
    found: Values = {}
    names = COMPARED if not case.dry else ("experts", "fp8 cache")
    for name in names:
        config, overrides = COMPARED[name]
        with random_model(config) as (folder, source):
            prompts = some_prompts(6, 21, 512)
            form = ("loading.load_format=dummy", "model.dtype=float32", "model.max_model_len=256")
            found[name] = compared(folder, source, case, prompts, *form, *overrides)
    far = {name: each["furthest_logprob"] for name, each in found.items() if each["furthest_logprob"] > NEAR}
    if far:
        raise RuntimeError(f"log-probabilities are too far apart: {far}")
    return {"compared": found}


def tokens(case: Case) -> Values:
    """Returns how many tokens of real models are those of the CPU, until the first near tie that falls otherwise."""
    found: Values = {}
    for model in case.models:
        with tempfile.TemporaryDirectory() as folder:
            prompts = some_prompts(4, 48, 2000)
            found[model] = compared(Path(folder), str(Path(model).resolve()), case, prompts, "model.max_model_len=2048")
    return {"models": found}


def streams(case: Case) -> Values:
    """Raises RuntimeError if a request that stays fails, or if anything is open or in use afterwards."""
    count, length = (8, 12) if case.dry else (64, 200)
    with random_model(TINY if case.dry else SMALL) as (folder, source):
        overrides = (f"hardware.kernels.kernel_set={case.kernel_set}", "loading.load_format=dummy")
        tracking = "endpoints.http.enable_server_load_tracking=true"
        _write_tokenizer(Path(source))
        sizes = ("model.max_model_len=512", "scheduler.max_num_seqs=64", "model.skip_tokenizer_init=false")
        plan = plan_of(folder, source, *overrides, tracking, *sizes)
        listen = msgspec.structs.replace(plan.serving.listen, port=0)
        plan = with_hashes(msgspec.structs.replace(plan, serving=msgspec.structs.replace(plan.serving, listen=listen)))
        (folder / "plan.json").write_bytes(msgspec.json.encode(plan))
        command = [sys.executable, "-m", "appliance.server", "--plan", str(folder / "plan.json")]
        server = subprocess.Popen([*command, "--state", str(folder)], stdout=subprocess.DEVNULL)
        try:
            url = _url_of(folder / "status.jsonl", server)
            return asyncio.run(_under_load(url, count, length))
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(timeout=30)


def _write_tokenizer(folder: Path) -> None:
    """A token for each byte: what a server reads and writes, and nobody looks at."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


def _url_of(status: Path, server: "subprocess.Popen[bytes]") -> str:
    """Waits until the server is ready. Raises RuntimeError if it ends before."""
    while server.poll() is None:
        events = [json.loads(line) for line in status.read_text().splitlines()] if status.exists() else []
        named = {event["event"]: event for event in events}
        if "ready" in named:
            return str(named["listening"]["url"])
        time.sleep(0.05)
    raise RuntimeError("the server ended before it was ready")


async def _under_load(url: str, count: int, length: int) -> Values:
    """Every third stream is left after a few chunks."""
    started = time.perf_counter()
    async with httpx.AsyncClient(base_url=url, timeout=60.0, limits=httpx.Limits(max_connections=count)) as http:
        chunks = await asyncio.gather(*(_stream(http, number, length) for number in range(count)))
        seconds = time.perf_counter() - started
        for _ in range(100):
            load = (await http.get("/load")).json()["server_load"]
            if load == 0:
                break
            await asyncio.sleep(0.05)
    stayed = [each for number, each in enumerate(chunks) if number % 3]
    if load or min(stayed) < length:
        raise RuntimeError(f"{load} requests are open; the shortest answer has {min(stayed)} of {length} tokens")
    return {"streams": count, "left": count - len(stayed), "tokens": sum(chunks), "wall_s": round(seconds, 3)}


async def _stream(http: httpx.AsyncClient, number: int, length: int) -> int:
    """Returns how many tokens came; of a stream that is left, how many chunks. Raises RuntimeError for an error."""
    prompt = some_prompts(1, 16 + number, 250)[0]
    body = {"model": "device", "prompt": prompt, "max_tokens": length, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, "temperature": 0.0 if number % 2 else 0.8}  # fmt: skip
    found = 0
    async with http.stream("POST", "/v1/completions", json=body) as answer:
        async for line in answer.aiter_lines():
            if answer.status_code != 200:
                raise RuntimeError(line)
            if not line.startswith("data: {"):
                continue
            usage = json.loads(line.removeprefix("data: ")).get("usage")
            found = usage["completion_tokens"] if usage else found + 1
            if number % 3 == 0 and found == 4:
                break
    return found


def speed(case: Case) -> Values:
    """Returns a row for each workload: what was reached, and what was aimed at."""
    if case.dry:
        return {
            "8b": _rates(case, TINY, DECODES[:1], PREFILLS[:1], OFFLINE),
            "0.5b": _rates(case, TINY, SMALL_DECODES[:1], (), SMALL_OFFLINE),
        }
    return {
        "8b": _rates(case, BIG, DECODES, PREFILLS, OFFLINE),
        "0.5b": _rates(case, SMALL, SMALL_DECODES, (), SMALL_OFFLINE),
    }


def _rates(
    case: Case, config: Mapping[str, Any], decodes: Sequence[tuple[int, int, float]],
    prefills: Sequence[tuple[int, float]], offline_aim: float,
) -> list[Values]:  # fmt: skip
    form = (f"hardware.kernels.kernel_set={case.kernel_set}", "loading.load_format=dummy", "cache.prefix_caching=false")
    steps = 4 if case.dry else 48
    rows: list[Values] = []
    with random_model(config) as (folder, source):
        started = time.perf_counter()
        longest = config["max_position_embeddings"]
        plan = plan_of(folder, source, *form, f"model.max_model_len={longest}", *_small(case))
        with InprocEngine.from_plan(plan) as engine:
            ready_s = time.perf_counter() - started
            for count, length, aim in decodes:
                count, length = (min(count, 4), 24) if case.dry else (count, length)
                prompts = some_prompts(count, length, config["vocab_size"])
                generate(engine, prompts, 8)  # compiles kernels and captures the size's graph
                rate = count * steps / _decode_s(generate(engine, prompts, steps + 2 * TAIL)[2], steps)
                rows.append({"decode": count, "behind": length, "tokens_per_s": round(rate, 1), "aim": aim})
            for length, aim in prefills:
                length = 48 if case.dry else length
                prompts = some_prompts(1, length, config["vocab_size"])
                seconds = min(_first_s(generate(engine, prompts, 1)[2]) for _ in range(4))
                rows.append({"prefill": length, "tokens_per_s": round(length / seconds, 1), "aim": aim})
            rows.append(_offline(engine, 6 if case.dry else 512, offline_aim, config["vocab_size"]))
    return [{"ready_s": round(ready_s, 2)}, *rows]


def _offline(engine: InprocEngine, count: int, aim: float, vocabulary: int) -> Values:
    """Requests of 128 to 512 tokens, 128 out, all at once: the rate of tokens in and out."""
    lengths = np.random.default_rng(count).integers(128, 513, count).tolist()
    prompts = [some_prompts(1, length, vocabulary)[0] for length in lengths]
    found, _, times = generate(engine, prompts, 128)
    rate = (sum(lengths) + sum(map(len, found))) / (times[-1] - times[0])
    return {"offline": count, "tokens_per_s": round(rate, 1), "aim": aim}


def _small(case: Case) -> tuple[str, ...]:
    return ("hardware.memory.kv_cache=4MiB", "scheduler.max_num_seqs=8") if case.dry else ()


def _decode_s(times: Sequence[float], steps: int) -> float:
    """Returns the seconds of steps in which every sequence decodes: some begin and end a few steps before the rest."""
    return times[-TAIL] - times[-TAIL - steps]


def _first_s(times: Sequence[float]) -> float:
    return times[1] - times[0]


PARTS: Final[Mapping[str, Callable[[Case], Values]]] = {
    "parity": parity, "tokens": tokens, "streams": streams, "speed": speed,
}  # fmt: skip
