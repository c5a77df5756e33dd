"""The parts `start` and `speed ...`: from nothing to the first token, and rates of decode, prefill and offline work."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from device_case import BIG, SMALL, TINY, Case, Findings, Values, generate, prepared_of, random_model, some_prompts

from appliance.engine.inproc import InprocEngine
from appliance.plan.estimate import Workload, estimate
from appliance.plan.prepare import Prepared
from appliance.plan.programs import program_of

TAIL: Final = 16  # steps at the end that are not measured: some sequences begin and end before the rest
STEPS: Final = 48  # that are
FEW_LAYERS: Final = 8  # of a model whose weights are rounded while it is loaded, which takes the host its time


class Rates(NamedTuple):
    """Workloads of one model, with what is aimed at in tokens a second; None: nothing was measured that could be.

    decodes: sequences, tokens behind each, aim. prefills: prompts at once, tokens of each, aim. offline: the aim of 512
    requests at once, in and out.
    """

    config: Mapping[str, Any]
    overrides: tuple[str, ...]
    decodes: tuple[tuple[int, int, float | None], ...]
    prefills: tuple[tuple[int, int, float | None], ...]
    offline: float | None = None


_FEWER: Final = BIG | {"num_hidden_layers": FEW_LAYERS}
SPEEDS: Final[dict[str, Rates]] = {
    "speed 8b": Rates(
        BIG, (),
        ((1, 512, 183.0), (16, 512, 2550.0), (64, 512, 8200.0), (256, 512, 18300.0), (16, 8192, 1330.0)),
        ((1, 512, 40000.0), (1, 4096, 41000.0), (8, 2048, 42000.0)), 37000.0,
    ),
    "speed fp8": Rates(
        _FEWER, ("model.quantization=fp8",),
        tuple((count, 512, None) for count in (1, 16, 64, 256)), ((1, 512, None), (1, 4096, None)),
    ),
    "speed int4": Rates(
        _FEWER, ("model.quantization=int4",), tuple((count, 512, None) for count in (1, 16, 64)), (),
    ),
    "speed 0.5b": Rates(
        SMALL, (),
        ((1, 512, 1500.0), (16, 512, 16000.0), (64, 512, 48000.0), (256, 512, 115000.0)),
        ((1, 512, 330000.0), (1, 4096, 490000.0)), 250000.0,
    ),
}  # fmt: skip


def start(case: Case) -> Findings:
    """Yields the seconds to the first token of two processes: one that finds no compiled kernels, and one that finds
    those of the first."""
    with tempfile.TemporaryDirectory() as kept:
        for name in ("without kept kernels", "with kept kernels"):
            yield name, _first_token(case, kept)


def _first_token(case: Case, kept: str) -> Values:
    command = [sys.executable, __file__, json.dumps({"dry": case.dry, "kernel_set": case.kernel_set})]
    environment = {**os.environ, "TRITON_CACHE_DIR": kept, "APPLIANCE_CACHE": kept}
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-2000:])
    found: Values = json.loads(done.stdout.splitlines()[-1])
    return {"process_s": round(time.perf_counter() - started, 2), **found}


def _report_first_token(dry: bool, kernel_set: str) -> None:
    """Writes the seconds to an engine that is ready, to its first token, and of a second request."""
    config = TINY if dry else SMALL
    with random_model(config) as (folder, source):
        started = time.perf_counter()
        overrides = (f"hardware.kernels.kernel_set={kernel_set}", "loading.load_format=dummy", *_small(dry))
        plan = prepared_of(folder, source, *overrides).plan
        with InprocEngine.from_plan(plan) as engine:
            ready_s = time.perf_counter() - started
            seconds = [_first_s(generate(engine, some_prompts(1, 16 + again, 512), 1)[2]) for again in range(2)]
    rest = {"first_token_s": round(ready_s + seconds[0], 3), "second_request_s": round(seconds[1], 4)}
    sys.stdout.write(json.dumps({"ready_s": round(ready_s, 3), **rest}) + "\n")


def speed(case: Case, name: str) -> Findings:
    """Yields a row for each workload: what was reached, what the plan predicted, and what was aimed at."""
    rates = SPEEDS[name]
    config = rates.config if not case.dry else TINY
    form = (f"hardware.kernels.kernel_set={case.kernel_set}", "loading.load_format=dummy", "cache.prefix_caching=false")
    with random_model(config) as (folder, source):
        started, longest = time.perf_counter(), config["max_position_embeddings"]
        length = (f"model.max_model_len={longest}", *_small(case.dry))
        prepared = prepared_of(folder, source, *form, *rates.overrides, *length)
        with InprocEngine.from_plan(prepared.plan) as engine:
            yield "ready_s", round(time.perf_counter() - started, 2)
            yield "layers", config["num_hidden_layers"]
            for count, behind, aim in rates.decodes[-1:] if case.dry else rates.decodes:
                row = _decode(case, engine, config, count, behind)
                yield f"decode of {count} behind {behind}", row | _wanted(prepared, count, behind, aim)
            for count, size, aim in rates.prefills[-1:] if case.dry else rates.prefills:
                row = _prefill(case, engine, config, count, size)
                yield f"prefill of {count} x {size}", row | _wanted(prepared, count, size, aim, is_prompt=True)
            if rates.offline is not None:
                sizes = (6, 8) if case.dry else (512, 128)
                yield "offline", _offline(engine, *sizes, config["vocab_size"]) | {"aim": rates.offline}


def _decode(case: Case, engine: InprocEngine, config: Mapping[str, Any], count: int, behind: int) -> Values:
    count, behind, steps = (min(count, 4), 24, 4) if case.dry else (count, behind, STEPS)
    prompts = some_prompts(count, behind, config["vocab_size"])
    generate(engine, prompts, 8)  # compiles kernels and captures the size's graph
    tail = 2 if case.dry else TAIL
    times = generate(engine, prompts, steps + 2 * tail)[2]
    return {"tokens_per_s": round(count * steps / (times[-tail] - times[-tail - steps]), 1)}


def _prefill(case: Case, engine: InprocEngine, config: Mapping[str, Any], count: int, size: int) -> Values:
    count, size = (min(count, 2), 48) if case.dry else (count, size)
    prompts = some_prompts(count, size, config["vocab_size"])
    seconds = min(_all_s(generate(engine, prompts, 1)[2]) for _ in range(2 if case.dry else 4))
    return {"tokens_per_s": round(count * size / seconds, 1)}


def _offline(engine: InprocEngine, count: int, length: int, vocabulary: int) -> Values:
    """Requests of 128 to 512 tokens, all at once: the rate of tokens in and out. length: of answers."""
    lengths = np.random.default_rng(count).integers(128, 513, count).tolist()
    prompts = [some_prompts(1, length, vocabulary)[0] for length in lengths]
    found, _, times = generate(engine, prompts, length)
    rate = (sum(lengths) + sum(map(len, found))) / _all_s(times)
    return {"requests": count, "tokens_per_s": round(rate, 1)}


def _wanted(prepared: Prepared, count: int, size: int, aim: float | None, *, is_prompt: bool = False) -> Values:
    """Returns what the plan predicts, where it does, and the aim."""
    plan, inputs, speed = prepared.plan, prepared.inputs, prepared.inputs.speed
    work = Workload(streams=count, prompt=size, answer=2)
    program = program_of(plan, prepared.model, inputs.programs)
    found = None if speed is None else estimate(plan, program, speed, work)
    if found is None:
        return {"predicted": None, "aim": aim}
    rate = found.prefill_tokens_per_s if is_prompt else found.output_tokens_per_s
    return {"predicted": round(rate, 1), "aim": aim}


def _small(dry: bool) -> tuple[str, ...]:
    return ("hardware.memory.kv_cache=4MiB", "scheduler.max_num_seqs=8") if dry else ()


def _first_s(times: Sequence[float]) -> float:
    return times[1] - times[0]


def _all_s(times: Sequence[float]) -> float:
    return times[-1] - times[0]


if __name__ == "__main__":
    _report_first_token(**json.loads(sys.argv[1]))
