"""A tiny model with three adapters, and places for two of them."""

import dataclasses
from pathlib import Path

from appliance.checkpoint.adapter import read_adapter
from appliance.engine.adapters import AdapterStore
from appliance.engine.core.adapter_slots import ServedAdapter
from appliance.kernels.binding import load_kernel_set
from appliance.kernels.execution import Execution
from appliance.kernels.interface import Executable
from appliance.layers.adapters import Wanted, with_adapters
from appliance.models.adapter_places import AdapterPlaces
from appliance.plan.types import AdapterPlan
from tests.models.adapters import make_adapter
from tests.parity.conftest import Checkpoint
from tests.parity.harness import bind_adapted, execution_of


def adapted(
    checkpoint: Checkpoint, folder: Path
) -> tuple[Executable, Execution, AdapterStore, dict[str, ServedAdapter]]:
    """Binds the model, and makes adapters "one", "two" and "three" in `folder`."""
    bounds = execution_of(sampled=64)
    bounds = dataclasses.replace(bounds, limits=dataclasses.replace(bounds.limits, max_loras=2))
    executable, program = bind_adapted(
        checkpoint.facts,
        load_kernel_set("cpu-generic"),
        lambda one: with_adapters(one, Wanted(4, lambda weight: weight.startswith("layers."))),
        execution=bounds,
    )
    assert program is not None
    places = AdapterPlaces.of(checkpoint.facts, 64, program)
    store, served = AdapterStore(places, "bf16"), dict[str, ServedAdapter]()
    for seed, each in enumerate(("one", "two", "three")):  # more than there are slots
        make_adapter(checkpoint.oracle, folder / each, seed)
        digest = read_adapter(folder / each).sha256
        store.load(AdapterPlan(name=each, path=str(folder / each), sha256=digest, rank=4, num_modules=1))
        served[each] = ServedAdapter(digest)
    return executable, bounds, store, served
