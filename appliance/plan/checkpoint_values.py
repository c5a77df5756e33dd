"""Values of a checkpoint that requests meet: sampling defaults and ends. One that cannot be is left out, and the plan
says so; one that the spec names a file for is refused."""

from collections.abc import Mapping
from typing import Any

from appliance.catalog.sampling import SAMPLING_BOUNDS
from appliance.checkpoint.facts import LeftOut
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger

# generation_config.json name -> SamplingParams name; these are the ones that vLLM reads.
SAMPLING_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_sampling(inputs: PlanInputs, ledger: Ledger) -> dict[str, Any]:
    """Under SamplingParams' names, all within their bounds."""
    over = inputs.spec.decoding.override_generation_config
    values = {SAMPLING_NAMES[name]: value for name, value in _base(inputs, ledger).items() if name not in over}
    values |= {SAMPLING_NAMES.get(key, key): value for key, value in over.items()}
    if values:
        path = "decoding.override_generation_config" if over else "decoding.generation_config"
        source = "model" if ledger.source_of(path) == "default" else ledger.source_of(path)
        ledger.decide("model.default_sampling", values, source, "defaults of requests; max_tokens also caps them")
    return values


def say_ends(inputs: PlanInputs, ledger: Ledger) -> None:
    """Records the token ids that the checkpoint names and its model does not have."""
    tokenizer = inputs.model.tokenizer
    for each in tokenizer.left_out:
        _say_left_out(each, "model.eos_token_ids", list(tokenizer.eos_token_ids), ledger)
    if tokenizer.left_out and not tokenizer.eos_token_ids:
        ledger.warnings.append(
            "the checkpoint names no token that ends a text: max_tokens and stop strings end answers"
        )


def _base(inputs: PlanInputs, ledger: Ledger) -> dict[str, Any]:
    """The checkpoint's own values or those of the spec's file, as far as they can be."""
    wanted = inputs.spec.decoding.generation_config
    if wanted == AUTO:
        return _possible(inputs.model.generation_config, _file_name(inputs), ledger)
    if wanted == "none":
        return {}
    values = inputs.files.generation_config or {}
    for each in _impossible(values, "generation_config.json"):
        message = f"{each.field} is {each.value} in {each.file} of {wanted}"
        hint = "mend the file, or write decoding.override_generation_config"
        ledger.refuse("decoding.generation_config", "plan/generation-config", message, allowed=each.allowed, hint=hint)
    return _stated(values)


def _possible(values: Mapping[str, Any], file: str, ledger: Ledger) -> dict[str, Any]:
    wrong = _impossible(values, file)
    for each in wrong:
        _say_left_out(each, f"model.default_sampling.{SAMPLING_NAMES[each.field]}", None, ledger)
    names = {each.field for each in wrong}
    return {name: value for name, value in _stated(values).items() if name not in names}


def _impossible(values: Mapping[str, Any], file: str) -> list[LeftOut]:
    return [
        LeftOut(file=file, field=name, value=repr(value), allowed=SAMPLING_BOUNDS[name].words)
        for name, value in _stated(values).items()
        if not SAMPLING_BOUNDS[name].holds(value)
    ]


def _stated(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in SAMPLING_NAMES if values.get(name) is not None}


def _file_name(inputs: PlanInputs) -> str:
    return "generation_config.json" if inputs.model.format != "gguf" else "general.sampling of the GGUF file"


def _say_left_out(left_out: LeftOut, path: str, value: Any, ledger: Ledger) -> None:
    ledger.decide(path, value, "model", str(left_out))
    ledger.warnings.append(str(left_out))
