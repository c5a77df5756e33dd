"""From a plan to something that runs: the family's decoder, its program, its weights, bound by a kernel set."""

import importlib
from collections.abc import Callable
from typing import cast

from appliance.catalog.architectures import ARCHITECTURES
from appliance.checkpoint.facts import ModelFacts
from appliance.checkpoint.reader import open_tensors
from appliance.kernels.interface import Executable, ExecutionLimits, KernelSet
from appliance.layers.decoder import compile_decoder
from appliance.layers.inventory import take_inventory
from appliance.layers.spec import DecoderSpec
from appliance.layers.weights import DecoderWeights, Progress
from appliance.models.errors import ModelError
from appliance.plan.types import EnginePlan


def build_decoder(facts: ModelFacts, max_model_len: int) -> DecoderSpec:
    """The decoder of a checkpoint, for sequences of up to `max_model_len` tokens.

    Raises ModelError when the architecture, or something its config asks for, is not in this version.
    """
    architecture = ARCHITECTURES.get(facts.architecture)
    if architecture is None or architecture.family is None:
        known = ", ".join(entry.name for entry in ARCHITECTURES.values() if entry.family)
        raise ModelError(f"the architecture {facts.architecture!r} is not in this version", hint=f"known: {known}")
    build = cast(Callable[[ModelFacts, int], DecoderSpec], importlib.import_module(architecture.family).build)
    return build(facts, max_model_len)


def load_model(
    plan: EnginePlan,
    facts: ModelFacts,
    kernel_set: KernelSet,
    limits: ExecutionLimits,
    progress: Progress | None = None,
) -> Executable:
    """Translates and binds all weights; `progress` hears bytes read and bytes in all after each weight.

    Raises ModelError or WeightError (both say what is wrong with the checkpoint), or what the kernel set raises.
    """
    spec = build_decoder(facts, plan.model.max_model_len)
    inventory = take_inventory(spec, facts, plan.precision)
    compiled = compile_decoder(spec, {name: item.form for name, item in inventory.items()})
    with open_tensors(facts) as reader:
        weights = DecoderWeights(compiled, inventory, reader, limits.max_model_len, progress)
        return kernel_set.bind(compiled.program, weights, compiled.kv_shapes, limits)
