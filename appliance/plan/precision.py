"""Pass `precision`: the form of every stored type, the activations, the cache."""

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Literal, cast

from appliance.catalog.formats import (
    DENSE,
    F32,
    INTEGER_LAYOUTS,
    LOAD_QUANTIZATIONS,
    STORAGES,
    TensorRole,
    WeightForm,
    dense_error,
    is_unused,
    tensor_role,
)
from appliance.catalog.kernel_sets import KernelSetFacts
from appliance.catalog.packing import Matrix, packed_total
from appliance.checkpoint.facts import ModelFacts, TensorFacts
from appliance.plan.inputs import PlanInputs
from appliance.plan.ledger import AUTO, Ledger
from appliance.plan.types import PrecisionPlan, WeightPlan

DenseType = Literal["f32", "bf16", "f16"]
KvType = Literal["f32", "bf16", "f16", "fp8_e4m3", "fp8_e5m2"]

_DTYPES: dict[str, DenseType] = {
    "float32": "f32", "float": "f32", "float16": "f16", "half": "f16", "bfloat16": "bf16",
}  # fmt: skip
_KV_DTYPES: dict[str, KvType] = {
    "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2",
}  # fmt: skip
_OWN_METHODS = (AUTO, "none", *LOAD_QUANTIZATIONS)  # that need nothing of the checkpoint
_STORED_METHODS = (None, "gguf", "compressed-tensors")  # that a checkpoint may come in


def plan_precision(inputs: PlanInputs, kernels: KernelSetFacts, ledger: Ledger) -> PrecisionPlan:
    dtype = _dense_type(inputs, ledger)
    _check_quantization(inputs, ledger)
    weights = _weights(inputs, dtype, kernels, ledger)
    if dtype not in kernels.activation_dtypes:
        reason = f"{kernels.name} computes in {kernels.activation_dtypes[0]} whatever the weights are"
        activations = ledger.decide("precision.activations", kernels.activation_dtypes[0], "hardware", reason)
    else:
        activations = ledger.decide("precision.activations", dtype, ledger.source_of("model.dtype"), "model.dtype")
    return PrecisionPlan(
        weights=weights,
        activations=cast(DenseType, activations),
        quantize_activations=_quantize_activations(inputs, weights, kernels, ledger),
        kv_dtype=_kv_dtype(inputs, dtype, kernels, ledger),
    )


def _dense_type(inputs: PlanInputs, ledger: Ledger) -> DenseType:
    """vLLM's rule: f32 and f16 checkpoints run in f16, bf16 ones in bf16; on a CPU f16 becomes bf16."""
    path, wanted = "precision.dtype", inputs.spec.model.dtype
    if wanted != AUTO:
        return ledger.take(path, "model.dtype", _DTYPES[wanted])
    stored = _stored_dense_type(inputs.model)
    if stored == "bf16":
        return ledger.decide(path, "bf16", "model", "the checkpoint is bf16")
    if inputs.profile.device == "cpu":
        return ledger.decide(path, "bf16", "hardware", f"{stored} would run in f16, and on a CPU f16 becomes bf16")
    return ledger.decide(path, "f16", "model", f"the checkpoint is {stored}, which runs in f16")


def _stored_dense_type(model: ModelFacts) -> str:
    """The dense type of most matrix bytes; f16 where every matrix is quantized."""
    sizes: Counter[str] = Counter()
    for tensor in model.tensors:
        if tensor_role(tensor.name, len(tensor.shape)) != "other" and tensor.storage in ("f32", "f16", "bf16", "f64"):
            sizes[tensor.storage] += tensor.size_bytes
    return sizes.most_common(1)[0][0] if sizes else "f16"


def _check_quantization(inputs: PlanInputs, ledger: Ledger) -> None:
    wanted, stored = inputs.spec.model.quantization, inputs.model.quantization
    rule, path = "plan/quantization", "model.quantization"
    if stored not in _STORED_METHODS:
        message = f"the checkpoint is quantized by {stored}, which is not in this version"
        allowed = ", ".join(filter(None, _STORED_METHODS)) + ", or no quantization"
        ledger.refuse(path, rule, message, allowed=allowed, hint="choose a checkpoint of one of these")
    elif wanted not in _OWN_METHODS and wanted != (stored or "none"):
        has = f"is quantized as {stored}" if stored else "is not quantized"
        message = f"model.quantization is {wanted}, and the checkpoint {has}"
        ledger.refuse(path, rule, message, allowed=", ".join(dict.fromkeys(("auto", "none", stored or "auto"))),
                      hint="write quantization: auto")  # fmt: skip
    elif wanted in LOAD_QUANTIZATIONS and stored is not None:
        message = f"{wanted} is made from plain weights while loading, and the checkpoint is quantized as {stored}"
        ledger.refuse(path, rule, message, allowed="auto, none", hint="write quantization: auto")


def _weights(inputs: PlanInputs, dtype: DenseType, kernels: KernelSetFacts, ledger: Ledger) -> tuple[WeightPlan, ...]:
    groups: dict[tuple[str, TensorRole], list[TensorFacts]] = {}
    for tensor in inputs.model.tensors:
        if not is_unused(tensor.name):
            groups.setdefault((tensor.storage, tensor_role(tensor.name, len(tensor.shape))), []).append(tensor)
    refused = {tensor.storage for tensor in inputs.model.tensors if STORAGES[tensor.storage].form is None}
    if refused and inputs.model.quantization in _STORED_METHODS:
        message = f"tensors are stored as {', '.join(sorted(refused))}, which is not in this version"
        readable = ", ".join(name for name, entry in STORAGES.items() if entry.form is not None)
        ledger.refuse("model.source", "plan/storage", message, allowed=readable, hint="choose another checkpoint")
    plans = []
    for (storage, role), tensors in sorted(groups.items()):
        form, error = weight_form(storage, role, dtype, inputs.spec.model.quantization)
        _check_groups(form, tensors, inputs, ledger)
        plans.append(_weight_plan(storage, role, form, error, tensors, kernels, inputs.model))
        if error != "exact":
            ledger.decide(f"precision.weights.{storage}.{role}", form.layout, "computed", error)
    return tuple(plans)


def weight_form(storage: str, role: TensorRole, dtype: DenseType, quantization: str) -> tuple[WeightForm, str]:
    """The canonical form of a stored type in a role, and its stated error."""
    stored = STORAGES[storage]
    if role == "other":
        return F32, "exact" if stored.is_quantized else dense_error(storage, "f32")
    if quantization in LOAD_QUANTIZATIONS and not stored.is_quantized:
        return LOAD_QUANTIZATIONS[quantization][role]
    if stored.is_quantized and quantization != "none" and stored.form is not None:
        return stored.form, stored.error
    return DENSE[dtype], dense_error(storage, dtype)


def _check_groups(form: WeightForm, tensors: list[TensorFacts], inputs: PlanInputs, ledger: Ledger) -> None:
    size = form.group_size
    if size is None:
        return
    for tensor in tensors:
        columns = _matrix_shape(tensor, inputs.model)[-1]
        if columns % size:
            message = f"{tensor.name} has {columns} columns, which do not divide into groups of {size}"
            ledger.refuse("model.quantization", "plan/groups", message, hint="write quantization: none")
            return


def _weight_plan(
    storage: str,
    role: TensorRole,
    form: WeightForm,
    error: str,
    tensors: list[TensorFacts],
    kernels: KernelSetFacts,
    model: ModelFacts,
) -> WeightPlan:
    kept = replace(form, has_offset=form.has_offset and not STORAGES[storage].is_symmetric)
    if kernels.name == "reference":
        kept = F32  # the oracle dequantizes everything
    vectors = [tensor for tensor in tensors if len(tensor.shape) < 2]
    matrices = [Matrix(each.name, _matrix_shape(each, model)) for each in tensors if len(each.shape) > 1]
    return WeightPlan(
        storage=storage,
        role=role,
        layout=form.layout,
        group_size=form.group_size,
        sub_group_size=form.sub_group_size,
        num_tensors=len(tensors),
        stored_bytes=sum(tensor.stored_bytes for tensor in tensors),
        planned_bytes=packed_total(kept, matrices, kernels.panel) + sum(4 * prod(tensor.shape) for tensor in vectors),
        error=error,
    )


def _matrix_shape(tensor: TensorFacts, model: ModelFacts) -> tuple[int, ...]:
    """(out_features, in_features), also where a checkpoint stores the transpose."""
    is_transposed = model.stored.linear_is_transposed and tensor_role(tensor.name, len(tensor.shape)) == "linear"
    return tensor.shape[::-1] if is_transposed else tensor.shape


def _quantize_activations(
    inputs: PlanInputs, weights: tuple[WeightPlan, ...], kernels: KernelSetFacts, ledger: Ledger
) -> bool:
    path, spec_path = "precision.quantize_activations", "hardware.kernels.quantize_activations"
    wanted = inputs.spec.hardware.kernels.quantize_activations
    has_integers = any(plan.layout in INTEGER_LAYOUTS for plan in weights)
    if wanted is True and not kernels.can_quantize_activations:
        message = f"{kernels.name} cannot round activations to 8 bits"
        if not ledger.may_degrade("activations", message):
            ledger.refuse(spec_path, "plan/activations", message, allowed="auto, false", hint="write auto")
    if not has_integers or not kernels.can_quantize_activations:
        reason = "no weights of 8 bits or less" if not has_integers else f"{kernels.name} computes in floats"
        return ledger.decide(path, False, "computed", reason)
    if wanted != AUTO:
        return ledger.take(path, spec_path, bool(wanted))
    reason = "products with weights of 8 bits or less take 8-bit activations, scaled a token and group"
    return ledger.decide(path, True, "hardware", reason)


def _kv_dtype(inputs: PlanInputs, dtype: DenseType, kernels: KernelSetFacts, ledger: Ledger) -> KvType:
    wanted, path = inputs.spec.cache.dtype, "precision.kv_dtype"
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
    return ledger.take(path, "cache.dtype", known)
