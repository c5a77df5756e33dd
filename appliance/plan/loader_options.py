"""The reader of weight files, and the options of it that `loading.model_loader_extra_config` gives."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from appliance.base.units import format_size
from appliance.checkpoint.loader_choice import NO_LOADER, CheckpointKey, LoaderChoice
from appliance.checkpoint.tensorizer import FORM as TENSORIZER
from appliance.checkpoint.tensorizer_key import MIXED, OPTIONS, PLAIN
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger
from appliance.plan.loading_types import StreamPlan
from appliance.spec.deployment import DeploymentSpec

PATH, RULE = "loading.model_loader_extra_config", "plan/loading"
STREAMED: Final = ("runai_streamer", "fastsafetensors")  # formats that name a reader: the files are safetensors
_SWITCH, _THREADS = "enable_multithread_load", "num_threads"  # vLLM's names, of load_format: safetensors
_CONCURRENCY, _MEMORY = "concurrency", "memory_limit"  # of the Run:ai streamer
_DEFAULT_THREADS: Final = 8
_DEFAULT_MEMORY: Final = 1 << 30
_KEY, _PASSWORD = OPTIONS["key"], OPTIONS["password"]  # the first is vLLM's name
_MOST: Final = {_THREADS: 256, _CONCURRENCY: 256, _MEMORY: 1 << 44}


def loader_of(spec: DeploymentSpec) -> LoaderChoice:
    """Returns the loader of the operator's own that a spec names, with its options."""
    loading = spec.loading
    if loading.loader_cls is None:
        return NO_LOADER
    return LoaderChoice(path=loading.loader_cls, options=loading.model_loader_extra_config)


def checkpoint_key_of(spec: DeploymentSpec, base: Path) -> CheckpointKey | None:
    """Returns where the secret of an encrypted checkpoint lies. base: from which relative paths start."""
    if spec.loading.load_format != TENSORIZER:
        return None
    for holds, option in OPTIONS.items():
        path = spec.loading.model_loader_extra_config.get(option)
        if isinstance(path, str) and path:
            return CheckpointKey(path=str(base / Path(path).expanduser()), holds=holds)
    return None


def plan_reader(inputs: PlanInputs, *, is_ours: bool, ledger: Ledger) -> StreamPlan | None:
    """How weights are read in parallel; None where their files are mapped. is_ours: our own decoder reads them."""
    wanted, options = inputs.spec.loading.load_format, inputs.spec.loading.model_loader_extra_config
    if wanted == "custom":
        _check_custom(inputs, ledger)
        return None
    known = _known(wanted)
    for key, value in options.items():
        _check(key, value, known, wanted, ledger)
    if wanted == TENSORIZER:
        _check_key(inputs, ledger)
    streams = wanted in STREAMED or (_SWITCH in known and options.get(_SWITCH) is True)
    if not streams:
        if set(options) & {_THREADS} and _THREADS in known:
            message = f"{_THREADS} has no use without {_SWITCH}: true"
            ledger.refuse(PATH, RULE, message, hint=f"add {_SWITCH}: true, or remove {_THREADS}")
        return None
    path = "loading.load_format" if wanted in STREAMED else PATH
    if inputs.model.format != "safetensors" or not is_ours:
        what = inputs.model.format if is_ours else "read by the modelling code of transformers"
        ledger.refuse(path, RULE, f"safetensors are read in parallel, and the checkpoint is {what}", hint="write auto")
        return None
    threads = _number(options, _CONCURRENCY if wanted in STREAMED else _THREADS, _DEFAULT_THREADS)
    memory = _number(options, _MEMORY, _DEFAULT_MEMORY)
    reason = f"{threads} threads read tensors past the page cache, and keep {format_size(memory)} of them at most"
    ledger.take("loading.stream", path, threads, reason)
    return StreamPlan(num_threads=threads, memory_bytes=memory)


def _check_custom(inputs: PlanInputs, ledger: Ledger) -> None:
    """Its options are its own."""
    if inputs.spec.model.weight_update_paths:
        message = "a loader of your own reads the model, and nothing tells whether what it reads has changed"
        ledger.refuse("model.weight_update_paths", RULE, message, hint="remove weight_update_paths")


def _check_key(inputs: PlanInputs, ledger: Ledger) -> None:
    """Checks that an encrypted checkpoint has one key, and another none."""
    options = inputs.spec.loading.model_loader_extra_config
    if _KEY in options and _PASSWORD in options:
        ledger.refuse(PATH, RULE, f"{_KEY} and {_PASSWORD} are both given", hint="give one of them")
    if inputs.model.is_encrypted and inputs.files.checkpoint_key is None:
        hint = f"{{{_KEY}: path}}, of 32 bytes, or {{{_PASSWORD}: path}}"
        ledger.refuse(PATH, RULE, "the checkpoint is encrypted, and no key is given", hint=hint)
    plain = (part for tensor in inputs.model.tensors for part in tensor.parts if part.size_bytes and not part.sealed_at)
    if inputs.model.is_encrypted and (part := next(plain, None)) is not None:
        hint = "write all weights into one file"
        ledger.refuse("model.source", RULE, f"tensor {part.name!r} of {part.file} {MIXED}", hint=hint)
    if inputs.files.checkpoint_key is not None and not inputs.model.is_encrypted:
        ledger.refuse(PATH, RULE, PLAIN, hint="remove the key, or name the file that was meant")


def _known(load_format: str) -> tuple[str, ...]:
    if load_format in STREAMED:
        return (_CONCURRENCY, _MEMORY)
    if load_format == TENSORIZER:
        return (_KEY, _PASSWORD)
    return (_SWITCH, _THREADS) if load_format in ("auto", "safetensors") else ()


def _check(key: str, value: Any, known: tuple[str, ...], load_format: str, ledger: Ledger) -> None:
    allowed, hint = ", ".join(known), f"remove {key}"
    if key not in known:
        message = f"load_format {load_format} has no option {key!r}"
        ledger.refuse(PATH, RULE, message, allowed=allowed or "no options", hint=hint)
    elif key == _SWITCH and not isinstance(value, bool):
        ledger.refuse(PATH, RULE, f"{key} is {value!r}", allowed="true, false", hint=hint)
    elif key in (_KEY, _PASSWORD):
        if not isinstance(value, str) or not value:
            ledger.refuse(PATH, RULE, f"{key} is no path", allowed="the path of a file", hint=hint)
    elif key != _SWITCH and (isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST[key]):
        ledger.refuse(PATH, RULE, f"{key} is {value!r}", allowed=f"a whole number from 1 to {_MOST[key]}", hint=hint)


def _number(options: Mapping[str, Any], key: str, default: int) -> int:
    value = options.get(key, default)
    return value if isinstance(value, int) else default
