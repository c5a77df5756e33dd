"""What a checkpoint's config asks of its family and the family cannot do. Loading would find it too, and later."""

from collections.abc import Iterator

from appliance.catalog.families import ACTIVATIONS, REFUSED_KEYS, ROTARY_NUMBERS
from appliance.checkpoint.config import ConfigFacts, normalize_config
from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.rope import RopeFacts
from appliance.plan.context import ContextRequest
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import Ledger

RULE = "plan/family"
_OTHER_MODEL = "choose another checkpoint"


def check_family(inputs: PlanInputs, context: ContextRequest, ledger: Ledger) -> None:
    """For an architecture that is built. Refusals stand at the spec's field where it replaced the config's value."""
    model = inputs.model
    for key, why in REFUSED_KEYS.get(model.architecture, {}).items():
        if model.config.get(key):
            message = f"{key} in the checkpoint's config is not in this version: {why}"
            ledger.refuse("model.source", RULE, message, hint=_OTHER_MODEL)
    try:
        config = normalize_config(model.config)
    except CheckpointError as error:
        ledger.refuse("model.source", RULE, error.problem, hint=error.hint or _OTHER_MODEL)
        return
    if config.activation not in ACTIVATIONS:
        message = f"the activation {config.activation!r} of the checkpoint is not in this version"
        ledger.refuse("model.source", RULE, message, allowed=", ".join(ACTIVATIONS), hint=_OTHER_MODEL)
    _check_rotary(inputs, config, context, ledger)


def _check_rotary(inputs: PlanInputs, config: ConfigFacts, context: ContextRequest, ledger: Ledger) -> None:
    path = "model.rope_scaling" if inputs.spec.model.rope_scaling else "model.source"
    hint = "remove model.rope_scaling, or complete it" if inputs.spec.model.rope_scaling else _OTHER_MODEL
    ropes = {str(layer.rope): layer.rope for layer in config.layers if layer.rope is not None}
    for rope in ropes.values():
        for message in _rotary_problems(rope, config):
            ledger.refuse(path, RULE, message, hint=hint)
        _check_dynamic(rope, config, context, ledger)


def _rotary_problems(rope: RopeFacts, config: ConfigFacts) -> Iterator[str]:
    columns = int(config.head_dim * rope.partial_factor)
    if columns <= 0 or columns % 2 or columns > config.head_dim:
        yield f"{columns} rotated columns of a head of {config.head_dim} do not form pairs"
    if rope.kind not in ROTARY_NUMBERS:
        yield f"rotary scaling {rope.kind!r} is not in this version"
        return
    for name in ROTARY_NUMBERS[rope.kind]:
        if not _is_number(rope.parameters.get(name)):
            yield f"rotary scaling {rope.kind!r} needs the number {name}; the config has {rope.parameters.get(name)!r}"
    if rope.kind == "longrope":
        for name in ("long_factor", "short_factor"):
            count = len(rope.parameters.get(name) or ())
            if count != columns // 2:
                yield f"{name} has {count} values; {columns // 2} frequencies are rotated"


def _check_dynamic(rope: RopeFacts, config: ConfigFacts, context: ContextRequest, ledger: Ledger) -> None:
    factor = rope.parameters.get("factor")
    if rope.kind != "dynamic" or not _is_number(factor):
        return
    trained = int(config.max_position / float(factor or 1))
    if context.limit > trained:
        message = f"dynamic rotary scaling beyond {trained:,} tokens would change keys that are already cached"
        allowed, hint = f"at most {trained}", f"write max_model_len: {trained}"
        ledger.refuse("model.max_model_len", RULE, message, allowed=allowed, hint=hint)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
