"""The parts `parity` and `tokens`: what the device says beside what the CPU says."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from device_case import TINY, Case, Findings, Values, generate, plan_of, random_model, some_prompts

from appliance.engine.inproc import InprocEngine

MIXTURE: Final = TINY | {
    "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip
LATENT: Final = TINY | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": 4,
    "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    "first_k_dense_replace": 1, "moe_intermediate_size": 32, "n_routed_experts": 8, "n_shared_experts": 1,
    "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
    "scoring_func": "sigmoid", "topk_method": "noaux_tc",
}  # fmt: skip
DELTA: Final = TINY | {
    "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "head_dim": 16, "partial_rotary_factor": 0.5,
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32, "full_attention_interval": 2, "decoder_sparse_step": 1,
    "norm_topk_prob": True, "mlp_only_layers": [], "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
# What is compared: a config, and the overrides that say the form of weights and caches.
COMPARED: Final[dict[str, tuple[Mapping[str, Any], tuple[str, ...]]]] = {
    "dense": (TINY, ()), "experts": (MIXTURE, ()), "latent": (LATENT, ()), "states": (DELTA, ()),
    "int8": (TINY, ("model.quantization=int8",)), "int4": (TINY, ("model.quantization=int4",)),
    "fp8": (TINY, ("model.quantization=fp8", "hardware.kernels.quantize_activations=false")),
    "fp8 cache": (TINY, ("cache.dtype=fp8",)), "int8 cache": (TINY, ("cache.dtype=int8",)),
}  # fmt: skip
DRY: Final = ("experts", "states", "fp8", "fp8 cache")
NEAR: Final = 0.05  # of a log-probability: sums in another order, through all layers


def parity(case: Case) -> Findings:
    """Raises RuntimeError where log-probabilities of equal tokens are too far apart, after all were compared."""
    far: dict[str, float] = {}
    for name in DRY if case.dry else COMPARED:
        config, overrides = COMPARED[name]
        with random_model(config) as (folder, source):
            prompts = some_prompts(3, 13, 512) if case.dry else some_prompts(6, 21, 512)
            form = ("loading.load_format=dummy", "model.dtype=float32", "model.max_model_len=256")
            found = compared(folder, source, case, prompts, *form, *overrides)
        yield name, found
        if found["furthest_logprob"] > NEAR:
            far[name] = found["furthest_logprob"]
    if far:
        raise RuntimeError(f"log-probabilities are too far apart: {far}")


def tokens(case: Case) -> Findings:
    """Yields how many tokens of real models are those of the CPU, until the first near tie that falls otherwise."""
    for model in case.models:
        with tempfile.TemporaryDirectory() as folder:
            prompts = some_prompts(4, 48, 2000)
            source = str(Path(model).resolve())
            yield model, compared(Path(folder), source, case, prompts, "model.max_model_len=2048")


def compared(folder: Path, source: str, case: Case, prompts: list[list[int]], *overrides: str) -> Values:
    """Sets the device beside the CPU: equal tokens, and how far log-probabilities are apart until tokens differ."""
    found = []
    on_cpu = ("hardware.device=cpu", "hardware.kernels.quantize_activations=false")
    for choice in (on_cpu, (f"hardware.kernels.kernel_set={case.kernel_set}",)):
        plan = plan_of(folder, source, *overrides, *choice)
        with InprocEngine.from_plan(plan) as engine:
            found.append(generate(engine, prompts, 6 if case.dry else 16, 0))
    (tokens, logprobs, _), (own_tokens, own_logprobs, _) = found
    same, far = 0, 0.0
    for ours, theirs, values, others in zip(own_tokens, tokens, own_logprobs, logprobs, strict=True):
        until = next((at for at, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b), len(ours))
        same += until
        far = max([far, *(abs(a - b) for a, b in zip(values[:until], others[:until], strict=True))])
    return {"tokens": sum(map(len, tokens)), "equal": same, "furthest_logprob": round(far, 5)}
