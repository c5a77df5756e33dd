"""What adapters cost: steps without one beside an engine that knows of none, one adapter beside its bytes, and many.

    python docs/benchmarks/adapters.py SPEC.yaml [--rank 16] [--rounds 5] [--tokens 48]

`SPEC` names a model, and has no `lora`. Two engines are loaded into this process, one without adapters and one with
eight random ones at every linear map of the layers; they take turns, so that a busy machine disturbs both alike. All
streams decode after a prompt of 32 tokens. Figures are medians of rounds, in tokens a second from the first token on:

- base: an engine with adapters that no stream uses, as a ratio to the one without, at 1 and 16 streams;
- one: a stream with an adapter, as time beside a stream without; its floor is the adapter's bytes over those of the
  weights that a step reads;
- many: 16 streams over 8 adapters beside 16 without.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from safetensors.numpy import save_file

from appliance.engine.inproc import InprocEngine
from appliance.engine.messages import GenerateRequest, OutputBatch, SamplingParams
from appliance.layers.adapters import Wanted, with_adapters
from appliance.models.adapter_places import AdapterPlaces
from appliance.models.adapters import module_names, place_filter, trained_weights
from appliance.models.describe import describe
from appliance.plan.prepare import Prepared, prepare

NUM_ADAPTERS = 8
PROMPT_TOKENS = 32


class Module(NamedTuple):
    """A linear map as peft sees it."""

    name: str
    rows: int
    columns: int


def modules_of(prepared: Prepared) -> list[Module]:
    """Returns the linear maps of the layers."""
    length = prepared.plan.model.max_model_len
    sources = trained_weights(prepared.model, length)
    program = with_adapters(describe(prepared.model, length).compiled, Wanted(1, place_filter(sources, None)))
    places = AdapterPlaces.of(prepared.model, length, program)
    found: dict[str, Module] = {}
    for weight in places.by_weight:
        (rows, columns), name = places.shape(weight), module_names(sources[weight])[0]
        before = found[name].rows if name in found else 0
        found[name] = Module(name, before + rows, columns)
    return list(found.values())


def write_adapter(folder: Path, modules: Sequence[Module], rank: int, seed: int) -> None:
    """Writes a random adapter as peft does."""
    rng = np.random.default_rng(seed)
    tensors: dict[str, np.ndarray] = {}
    for module in modules:
        for end, shape in (("A", (rank, module.columns)), ("B", (module.rows, rank))):
            values = rng.standard_normal(shape).astype(np.float32) * 0.02
            tensors[f"base_model.model.{module.name}.lora_{end}.weight"] = values
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_bytes(msgspec.json.encode(config))


def rate(engine: InprocEngine, label: str, adapters: Sequence[str | None], max_tokens: int) -> float:
    """Returns tokens a second of as many streams as there are adapters, from when all have a token."""
    for at, adapter in enumerate(adapters):
        sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0)
        prompt = [100 + (7 * at + i) % 97 for i in range(PROMPT_TOKENS)]
        name = f"{label}/{at}"
        engine.send(GenerateRequest(request_id=name, prompt_token_ids=prompt, sampling=sampling, adapter=adapter))
    num_open, counts, began, before = len(adapters), dict[str, int](), 0.0, 0
    while num_open:
        for event in engine.receive():
            for output in event.outputs if isinstance(event, OutputBatch) else ():
                counts[output.request_id] = counts.get(output.request_id, 0) + len(output.token_ids)
                num_open -= output.finish_reason is not None
        if not began and len(counts) == len(adapters):
            began, before = time.perf_counter(), sum(counts.values())
    return (sum(counts.values()) - before) / (time.perf_counter() - began)


def weight_bytes(prepared: Prepared) -> int:
    """Returns the planned bytes of the weights. A step reads all of them, where the head is the embedding."""
    return next(item.size_bytes for item in prepared.plan.memory[0].items if item.name == "weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=48)
    given = parser.parse_args()
    plain = prepare(given.spec)
    modules = modules_of(plain)
    with tempfile.TemporaryDirectory() as folder:
        names = [f"a{at}" for at in range(NUM_ADAPTERS)]
        for seed, name in enumerate(names):
            write_adapter(Path(folder) / name, modules, given.rank, seed)
        listed = ", ".join(f"{{name: {name}, source: {folder}/{name}}}" for name in names)
        lora = f"lora={{max_loras: {NUM_ADAPTERS}, max_rank: {given.rank}, adapters: [{listed}]}}"
        engines = {
            "without": InprocEngine.from_plan(plain.plan),
            "with": InprocEngine.from_plan(prepare(given.spec, (lora,)).plan),
        }
    works: dict[str, tuple[str, list[str | None]]] = {
        "1 base, no adapters": ("without", [None]),
        "1 base": ("with", [None]),
        "1 adapter": ("with", ["a0"]),
        "16 base, no adapters": ("without", [None] * 16),
        "16 base": ("with", [None] * 16),
        "16 over 8": ("with", [names[at % NUM_ADAPTERS] for at in range(16)]),
    }
    rates: dict[str, list[float]] = {work: [] for work in works}
    for number in range(given.rounds):
        order = list(works)
        for work in order[number % len(order) :] + order[: number % len(order)]:
            engine, adapters = works[work]
            rates[work].append(rate(engines[engine], f"{work}/{number}", adapters, given.tokens))
    adapter = 2 * given.rank * sum(module.rows + module.columns for module in modules)
    show(rates, adapter, weight_bytes(plain))
    for each in engines.values():
        each.close()


def show(rates: dict[str, list[float]], adapter_bytes: int, step_bytes: int) -> None:
    """Prints medians, and ratios of the same round."""
    for work, each in rates.items():
        sys.stdout.write(f"{work:22} {statistics.median(each):8.1f} tok/s\n")

    def ratio(work: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(rates[work], rates[other], strict=True))

    for count in (1, 16):
        sys.stdout.write(
            f"base, {count} streams: {ratio(f'{count} base', f'{count} base, no adapters'):.3f} of without\n"
        )
    slower, floor = 1 / ratio("1 adapter", "1 base") - 1, adapter_bytes / step_bytes
    sys.stdout.write(
        f"one adapter: {slower:+.1%} time, its bytes are {floor:.1%} ({adapter_bytes:,} of {step_bytes:,})\n"
    )
    sys.stdout.write(f"16 streams over 8 adapters: {1 / ratio('16 over 8', '16 base') - 1:+.1%} time\n")


if __name__ == "__main__":
    main()
