"""Arguments and values of vLLM that the spec has no field for, and why: what they ask for has no meaning here."""

from typing import Final, NamedTuple

from appliance.importing.words import Arity


class Without(NamedTuple):
    arity: Arity
    reason: str


_REPLICAS_JOIN: Final = (
    "no server is the head of others: ranks of other machines join with `appliance ranks join`, and replicas of other "
    "machines have servers of their own (parallelism.data_parallel_rank, data_parallel_hybrid_lb)"
)
WITHOUT: Final = {
    "override_neuron_config": Without(Arity.ONE, "there is no kernel set for Neuron devices"),
    "additional_config": Without(Arity.ONE, "no platform has settings beside the spec's own fields"),
    "override_attention_dtype": Without(
        Arity.ONE, "attention sums in float32 in every kernel set; cache.dtype and model.dtype say what it reads"
    ),
    "kv_sharing_fast_prefill": Without(
        Arity.NONE, "layers that share keys and values run for every token of a prompt; vLLM says the same of its own"
    ),
    "num_lookahead_slots": Without(Arity.ONE, "the slots of drafted tokens are taken with the step that checks them"),
    "disable_async_output_proc": Without(
        Arity.NONE, "outputs are sent while the next step runs; scheduler.async_scheduling says when that begins"
    ),
    "pt_load_map_location": Without(
        Arity.ONE, "files of PyTorch are mapped where they lie, and their tensors placed nowhere before they are packed"
    ),
    "worker_cls": Without(
        Arity.ONE,
        "ranks decide nothing, so there is no worker to put another in the place of; "
        "parallelism.worker_extension_cls adds methods to each",
    ),
    "headless": Without(Arity.NONE, _REPLICAS_JOIN),
    "data_parallel_address": Without(Arity.ONE, _REPLICAS_JOIN),
    "data_parallel_rpc_port": Without(Arity.ONE, _REPLICAS_JOIN),
    "data_parallel_backend": Without(
        Arity.ONE, "replicas are processes of a machine; `appliance render --to ray-serve` spreads them over a cluster"
    ),
    "ray_workers_use_nsight": Without(
        Arity.NONE, "observability.profiler_dir has the engine trace its own operators, whoever started it"
    ),
    "fully_sharded_loras": Without(
        Arity.NONE, "each rank computes the whole of an adapter's first map, so that answers are those of one rank"
    ),
    "show_hidden_metrics_for_version": Without(Arity.ONE, "no version has hidden a metric"),
}
VALUES_WITHOUT: Final = {
    ("quantization", "tpu_int8"): "there is no kernel set for TPUs",
    ("quantization", "neuron_quant"): "there is no kernel set for Neuron devices",
    ("lora_dtype", "float16"): "adapters are kept in bfloat16 or float32, whatever type their files have",
}  # of an argument that has a field
