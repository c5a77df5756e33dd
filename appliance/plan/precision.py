"""Pass `precision`: the form of every stored type, the activations, the cache."""

from collections import Counter
from collections.abc import Mapping
from typing import Literal, NamedTuple, cast

from appliance.catalog.formats import (
    DENSE,
    F32,
    LOAD_QUANTIZATIONS,
    ROUNDED_INPUT_LAYOUTS,
    STORAGES,
    STORED_METHODS,
    TensorRole,
    WeightForm,
    dense_error,
)
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.models.describe import Described
from appliance.models.tensors import is_ignored
from appliance.plan.accelerators import multiply_f8
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.program import PlannedProgram
from appliance.plan.types import PrecisionPlan, WeightPlan
from appliance.plan.weights import Group, GroupSize, Weight

DenseType = Literal["f32", "bf16", "f16"]
KvType = Literal["f32", "bf16", "f16", "int8", "fp8_e4m3", "fp8_e5m2"]

_DTYPES: dict[str, DenseType] = {
    "float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16",
}  # fmt: skip
_KV_DTYPES: dict[str, KvType] = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "int8",
    "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2",
}  # fmt: skip
_OWN_METHODS = (AUTO, "none", *LOAD_QUANTIZATIONS)  # that need nothing of the checkpoint


class Precision(NamedTuple):
    """The decisions of the pass, and the program with its weights in those forms."""

    plan: PrecisionPlan
    program: PlannedProgram


def plan_precision(inputs: PlanInputs, described: Described, kernels: KernelSetFacts, ledger: Ledger) -> Precision:
    stored = inputs.programs.weights(described, inputs.model)
    dtype = _dense_type(inputs, stored, ledger)
    _check_quantization(inputs, ledger)
    _check_storages(inputs, described, ledger)
    forms = _forms(inputs, stored, dtype, kernels, ledger)
    program = inputs.programs.stored(
        described, inputs.model, {group: form for group, (form, _) in forms.items()}, kernels
    )
    weights = tuple(_weight_plan(group, form, program.groups[group], error) for group, (form, error) in forms.items())
    if dtype not in kernels.activation_dtypes:
        reason = f"{kernels.name} computes in {kernels.activation_dtypes[0]} whatever the weights are"
        activations = ledger.decide("precision.activations", kernels.activation_dtypes[0], "hardware", reason)
    else:
        activations = ledger.decide("precision.activations", dtype, ledger.source_of("model.dtype"), "model.dtype")
    pools = described.spec.pooling is not None
    plan = PrecisionPlan(
        weights=weights,
        activations=cast(DenseType, activations),
        quantize_activations=_quantize_activations(inputs, weights, kernels, ledger, pools=pools),
        kv_dtype=_kv_dtype(inputs, dtype, program, ledger),
    )
    return Precision(plan, program)


def _dense_type(inputs: PlanInputs, stored: Mapping[str, Weight], ledger: Ledger) -> DenseType:
    """vLLM's rule: f32 and f16 checkpoints run in f16, bf16 ones in bf16; on a CPU f16 becomes bf16."""
    path, wanted = "precision.dtype", inputs.spec.model.dtype
    if wanted != AUTO:
        return ledger.take(path, "model.dtype", _DTYPES[wanted])
    found = _stored_dense_type(stored)
    if found == "bf16":
        return ledger.decide(path, "bf16", "model", "the checkpoint is bf16")
    if inputs.profile.device == "cpu":
        return ledger.decide(path, "bf16", "hardware", f"{found} would run in f16, and on a CPU f16 becomes bf16")
    return ledger.decide(path, "f16", "model", f"the checkpoint is {found}, which runs in f16")


def _stored_dense_type(stored: Mapping[str, Weight]) -> str:
    """The dense type of most matrix bytes; f16 where every matrix is quantized."""
    tensors = {part.tensor.name: part.tensor for each in stored.values() if each.role != "other" for part in each.parts}
    sizes: Counter[str] = Counter()
    for tensor in tensors.values():
        if tensor.storage in ("f32", "f16", "bf16", "f64"):
            sizes[tensor.storage] += tensor.size_bytes
    return sizes.most_common(1)[0][0] if sizes else "f16"


def _check_quantization(inputs: PlanInputs, ledger: Ledger) -> None:
    wanted, stored = inputs.spec.model.quantization, inputs.model.quantization
    rule, path = "plan/quantization", "model.quantization"
    if stored not in (None, *STORED_METHODS):
        message = f"the checkpoint is quantized by {stored}, which is not in this version"
        allowed = ", ".join(STORED_METHODS) + ", or no quantization"
        ledger.refuse(path, rule, message, allowed=allowed, hint="choose a checkpoint of one of these")
    elif wanted not in _OWN_METHODS and wanted != (stored or "none"):
        has = f"is quantized as {stored}" if stored else "is not quantized"
        message = f"model.quantization is {wanted}, and the checkpoint {has}"
        ledger.refuse(path, rule, message, allowed=", ".join(dict.fromkeys(("auto", "none", stored or "auto"))),
                      hint="write quantization: auto")  # fmt: skip
    elif wanted in LOAD_QUANTIZATIONS and stored not in (None, wanted):
        message = f"{wanted} is made from plain weights while loading, and the checkpoint is quantized as {stored}"
        ledger.refuse(path, rule, message, allowed="auto, none", hint="write quantization: auto")


def _check_storages(inputs: PlanInputs, described: Described, ledger: Ledger) -> None:
    """Refuses types that cannot be read. Tensors that no weight is made from, such as numbers of positions, may have
    any type."""
    read = (tensor for tensor in inputs.model.tensors if not is_ignored(tensor.name, described.spec))
    refused = {tensor.storage for tensor in read if STORAGES[tensor.storage].form is None}
    if refused and inputs.model.quantization in (None, *STORED_METHODS):
        message = f"tensors are stored as {', '.join(sorted(refused))}, which is not in this version"
        readable = ", ".join(name for name, entry in STORAGES.items() if entry.form is not None)
        ledger.refuse("model.source", "plan/storage", message, allowed=readable, hint="choose another checkpoint")


def _forms(
    inputs: PlanInputs, stored: Mapping[str, Weight], dtype: DenseType, kernels: KernelSetFacts, ledger: Ledger
) -> dict[Group, tuple[WeightForm, str]]:
    """The form of each stored type in each role, and its stated error."""
    found, named = {}, inputs.spec.model.quantization
    wanted = AUTO if named == inputs.model.quantization else named
    for group in sorted({group for weight in stored.values() for group in weight.groups()}):
        if kernels.runs == "models":
            form, error = DENSE[dtype], dense_error(group[0], dtype)
        else:
            form, error = weight_form(*group, dtype, wanted)
        found[group] = form, error
        _check_groups(form, group, stored, ledger)
        if error != "exact":
            ledger.decide(f"precision.weights.{group[0]}.{group[1]}", form.layout, "computed", error)
    return found


def weight_form(storage: str, role: TensorRole, dtype: DenseType, quantization: str) -> tuple[WeightForm, str]:
    """The canonical form of a stored type in a role, and its stated error.

    quantization: none, auto for what is stored, or one that is made while loading.
    """
    stored = STORAGES[storage]
    if role == "other":
        return F32, "exact" if stored.is_quantized else dense_error(storage, "f32")
    made = LOAD_QUANTIZATIONS.get(quantization, {})
    if role in made and not stored.is_quantized:
        return made[role]
    if stored.is_quantized and quantization != "none" and stored.form is not None:
        return stored.form, stored.error
    return DENSE[dtype], dense_error(storage, dtype)


def _check_groups(form: WeightForm, group: Group, stored: Mapping[str, Weight], ledger: Ledger) -> None:
    size = form.group_size
    if size is None:
        return
    parts = (part for each in stored.values() if group[1] == each.role for part in each.parts)
    for part in parts:
        if part.tensor.storage == group[0] and part.columns is not None and part.columns % size:
            message = f"{part.tensor.name} has {part.columns} columns, which do not divide into groups of {size}"
            ledger.refuse("model.quantization", "plan/groups", message, hint="write quantization: none")
            return


def _weight_plan(group: Group, form: WeightForm, size: GroupSize, error: str) -> WeightPlan:
    return WeightPlan(
        storage=group[0],
        role=group[1],
        layout=form.layout,
        group_size=form.group_size,
        sub_group_size=form.sub_group_size,
        num_tensors=size.num_tensors,
        stored_bytes=size.stored_bytes,
        planned_bytes=size.planned_bytes,
        error=error,
    )


def _quantize_activations(
    inputs: PlanInputs, weights: tuple[WeightPlan, ...], kernels: KernelSetFacts, ledger: Ledger, *, pools: bool
) -> bool:
    path, spec_path = "precision.quantize_activations", "hardware.kernels.quantize_activations"
    wanted = inputs.spec.hardware.kernels.quantize_activations
    rounds_f8 = kernels.rounds_f8_inputs and _has_f8_rows(weights) and _multiplies_f8(inputs)
    has_integers = any(plan.layout in ROUNDED_INPUT_LAYOUTS for plan in weights)
    can_round = kernels.can_quantize_activations or rounds_f8
    if wanted is True and not can_round:
        message = f"{kernels.name} cannot round activations to 8 bits"
        if not ledger.may_degrade("activations", message):
            ledger.refuse(spec_path, "plan/activations", message, allowed="auto, false", hint="write auto")
    if not can_round or not (has_integers or rounds_f8):
        reason = f"{kernels.name} computes in floats" if has_integers else "no weights are integer codes"
        return ledger.decide(path, False, "computed", reason)
    if wanted != AUTO:
        return ledger.take(path, spec_path, bool(wanted))
    if pools:
        reason = "8-bit activations cost vectors more than 8-bit weights do; true is faster"
        return ledger.decide(path, False, "computed", reason)
    reason = "products with weights of integer codes take 8-bit activations, scaled a token and group"
    if rounds_f8:
        reason = "products with FP8 weights of a scale a row take FP8 activations, scaled a token"
    return ledger.decide(path, True, "hardware", reason)


def _has_f8_rows(weights: tuple[WeightPlan, ...]) -> bool:
    return any(plan.layout == "f8" and plan.group_size is None and plan.role == "linear" for plan in weights)


def _multiplies_f8(inputs: PlanInputs) -> bool:
    """Returns whether every device multiplies FP8 with FP8; torch's CPU device does."""
    return multiply_f8(inputs.facts.accelerators)


def _kv_dtype(inputs: PlanInputs, dtype: DenseType, program: PlannedProgram, ledger: Ledger) -> KvType:
    wanted, path, kernels = inputs.spec.cache.dtype, "precision.kv_dtype", program.kernels
    if wanted == AUTO:
        if dtype == "f32":
            return ledger.decide(path, "f32", ledger.source_of("model.dtype"), "model.dtype is float32")
        preferred = inputs.profile.defaults.kv_cache_dtype
        if preferred in kernels.kv_dtypes:
            return ledger.decide(path, preferred, "profile", f"default of profile {inputs.profile.name}")
        return ledger.decide(path, cast(KvType, kernels.kv_dtypes[0]), "hardware", f"what {kernels.name} has")
    known = _KV_DTYPES.get(wanted)
    if known is None or known not in kernels.kv_dtypes:
        message = f"{kernels.name} has no {wanted} cache"
        allowed = ", ".join(name for name, kind in _KV_DTYPES.items() if kind in kernels.kv_dtypes)
        if not ledger.may_degrade("kv_dtype", f"{message}; bf16 is planned"):
            ledger.refuse("cache.dtype", "plan/kv-dtype", message, allowed=f"auto, {allowed}", hint="write auto")
        return "bf16"
    if known == "int8" and any(shape.values_in_keys for shape in program.program.caches):
        message = "the values of latent attention are columns of its keys, and int8 keys are kept as sums of columns"
        if not ledger.may_degrade("kv_dtype", f"{message}; bf16 is planned"):
            ledger.refuse("cache.dtype", "plan/kv-dtype", message, allowed="auto, bfloat16, fp8", hint="write fp8")
        return "bf16"
    return ledger.take(path, "cache.dtype", known)
