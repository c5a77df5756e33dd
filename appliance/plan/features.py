"""Passes `features` and `compatibility`: what this version lacks, and what cannot be had together."""

from typing import Final, get_args

from appliance.catalog.formats import LOAD_QUANTIZATIONS
from appliance.checkpoint import mistral
from appliance.checkpoint.config import text_config
from appliance.checkpoint.facts import CheckpointFormat
from appliance.plan.accelerators import warn_of_unused
from appliance.plan.inputs import PlanInputs
from appliance.plan.kernels import NOT_BUILT
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.parallel import num_devices
from appliance.plan.types import RANDOM_WEIGHTS
from appliance.spec import iter_set_fields

RULE_NOT_BUILT = "plan/not-built"
_NPCACHE: Final = "npcache"
_UNREAD_TOKENIZERS = {
    "none": ("the checkpoint has no tokenizer", "name one in model.tokenizer"),
    "sentencepiece": (
        "the checkpoint's tokenizer is a SentencePiece model without tokenizer.json, which is not read in this version",
        "name a folder in model.tokenizer that transformers' AutoTokenizer(...).save_pretrained wrote",
    ),
}  # by kind: what is wrong, and what helps


def refuse_unbuilt(inputs: PlanInputs, ledger: Ledger) -> None:
    """Every field that the user set and this version cannot do, at its place."""
    for found in iter_set_fields(inputs.loaded):
        if found.can_run:
            continue
        values = found.doc.built_values
        what = found.path if values is None else f"{found.path}: {_shown(found.value)}"
        default = "" if found.doc.default is None else _shown(found.doc.default)
        allowed = default if values is None else ", ".join(_shown(value) for value in values)
        hint = f"remove {found.path}" if values is None else f"write {_shown(values[0])}, or remove {found.path}"
        ledger.refuse(found.path, RULE_NOT_BUILT, f"{what} is {NOT_BUILT}", allowed=allowed, hint=hint)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def check_compatibility(inputs: PlanInputs, ledger: Ledger) -> None:
    """Wishes that the machine or the model rule out."""
    _check_device(inputs, ledger)
    warn_of_unused(inputs, ledger)
    _check_format(inputs, ledger)
    _check_config_format(inputs, ledger)
    _check_tokenizer(inputs, ledger)


def _check_device(inputs: PlanInputs, ledger: Ledger) -> None:
    wanted, planned = inputs.spec.hardware.device, inputs.profile.device
    if wanted not in (AUTO, planned):
        message = f"hardware.device is {wanted}, and profile {inputs.profile.name} is for {planned}"
        ledger.refuse("hardware.device", "plan/device", message, allowed=f"auto, {planned}", hint="write auto")
    named = inputs.spec.hardware.profile
    if named not in (AUTO, inputs.profile.name):
        message = f"hardware.profile is {named}, and the plan was asked for profile {inputs.profile.name}"
        ledger.refuse(
            "hardware.profile", "plan/profile", message, allowed=f"auto, {inputs.profile.name}", hint="write auto"
        )
    if planned != "cpu" and not num_devices(inputs):
        message = f"profile {inputs.profile.name} is for {planned}, and {inputs.facts.name} has no such device"
        ledger.refuse("hardware.profile", "plan/profile", message, hint="write auto")


def _check_format(inputs: PlanInputs, ledger: Ledger) -> None:
    wanted, stored = inputs.spec.loading.load_format, inputs.model.format
    if stored == "dummy":
        _check_random(inputs, ledger)
    elif wanted == _NPCACHE and stored == "pt":
        reason = "npcache: files of PyTorch are mapped where they lie, so the copy that it would make saves nothing"
        ledger.take("model.format", "loading.load_format", stored, reason)
    elif wanted in (*get_args(CheckpointFormat), _NPCACHE) and wanted != stored:
        message = f"loading.load_format is {wanted}, and the checkpoint is {stored}"
        ledger.refuse("loading.load_format", "plan/format", message, allowed=f"auto, {stored}", hint="write auto")


def _check_config_format(inputs: PlanInputs, ledger: Ledger) -> None:
    wanted, stored = inputs.spec.model.config_format, inputs.model.format
    if wanted != AUTO and (wanted == mistral.FORM) != (stored == mistral.FORM):
        message = f"model.config_format is {wanted}, and the checkpoint is read as {stored}"
        ledger.refuse("model.config_format", "plan/format", message, allowed="auto", hint="write auto")


def _check_random(inputs: PlanInputs, ledger: Ledger) -> None:
    """Says that the weights are random numbers, and refuses a config that asks for codes, which none are made of."""
    ledger.warnings.append(f"the weights are {RANDOM_WEIGHTS}")
    config = inputs.model.config
    if (config.get("quantization_config") or text_config(config).get("quantization_config")) is None:
        return
    if inputs.spec.model.quantization == AUTO:
        message = "the config is that of a quantized checkpoint, and random weights are floats"
        hint = "write model.quantization: none, or one that is made of floats while loading"
        ledger.refuse("model.quantization", "plan/format", message, allowed=", ".join(("none", *LOAD_QUANTIZATIONS)),
                      hint=hint)  # fmt: skip


def _check_tokenizer(inputs: PlanInputs, ledger: Ledger) -> None:
    spec = inputs.spec.model
    if spec.tokenizer_revision is not None and spec.tokenizer is None:
        message = "model.tokenizer_revision has no use without model.tokenizer: the checkpoint brings its own"
        hint = "write model.revision for the checkpoint, or name the tokenizer's repository in model.tokenizer"
        ledger.refuse("model.tokenizer_revision", "plan/tokenizer", message, hint=hint)
    kind = inputs.model.tokenizer.kind
    reads_all = spec.tokenizer_mode != AUTO or spec.skip_tokenizer_init or spec.tokenizer is not None
    if kind in _UNREAD_TOKENIZERS and not reads_all:
        message, way = _UNREAD_TOKENIZERS[kind]
        hint = f"{way}, or write tokenizer_mode: slow, or skip_tokenizer_init: true to send and get token ids"
        ledger.refuse("model.source", "plan/tokenizer", message, hint=hint)
