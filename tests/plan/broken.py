"""Specs that only the planner can refuse: text below the head, rule, place."""

from typing import NamedTuple

from .machines import MODEL


class Broken(NamedTuple):
    text: str
    rule: str
    path: str
    line: int
    column: int
    model: str = "small"


BROKEN = (
    Broken(MODEL + "  max_model_len: 4096\n", "plan/context", "model.max_model_len", 6, 18),
    Broken(MODEL + "  max_model_len: 1K\n", "plan/context", "model.max_model_len", 6, 18),
    Broken(MODEL + "  quantization: gguf\n", "plan/quantization", "model.quantization", 6, 17),
    Broken(MODEL + "  quantization: int8\n", "plan/quantization", "model.quantization", 6, 17, "qwen"),
    Broken(MODEL + "  quantization: squeezellm\n", "plan/not-built", "model.quantization", 6, 17),
    Broken(MODEL + "  task: transcribe\n", "plan/not-built", "model.task", 6, 9),
    Broken(MODEL + "  task: embed\n  enable_prompt_embeds: true\n", "plan/prompt-embeds",
           "model.enable_prompt_embeds", 7, 25),
    Broken(MODEL + "scheduler: {disable_chunked_mm_input: true}\n", "plan/not-built",
           "scheduler.disable_chunked_mm_input", 6, 39),
    Broken(MODEL + "  tokenizer_revision: main\n", "plan/tokenizer", "model.tokenizer_revision", 6, 23),
    Broken(MODEL, "plan/family", "model.source", 5, 11, "quick-gelu"),
    Broken(MODEL, "plan/family", "model.source", 5, 11, "mrope"),
    Broken(MODEL, "plan/family", "model.source", 5, 11, "odd-rotation"),
    Broken(MODEL, "plan/family", "model.source", 5, 11, "gpt2-cross"),
    Broken(MODEL + "  rope_scaling: {rope_type: llama3, factor: 8.0}\n", "plan/family", "model.rope_scaling", 6, 17),
    Broken(MODEL + "  max_model_len: 200\n  rope_scaling: {rope_type: dynamic, factor: 2.0}\n", "plan/family",
           "model.max_model_len", 6, 18),
    Broken(MODEL + "loading: {load_format: gguf}\n", "plan/format", "loading.load_format", 6, 24),
    Broken(MODEL + "loading: {load_format: safetensors}\n", "plan/format", "loading.load_format", 6, 24, "qwen"),
    Broken(
        MODEL + "parallelism: {tensor: 2}\nhardware: {num_threads: 4096}\n",
        "plan/threads",
        "hardware.num_threads",
        7,
        25,
    ),
    Broken(MODEL + "parallelism: {tensor: 3}\n", "plan/parallelism", "parallelism.tensor", 6, 23),
    Broken(MODEL + "parallelism: {pipeline: 64}\n", "plan/parallelism", "parallelism.pipeline", 6, 25),
    Broken(MODEL + "parallelism: {data: 64}\n", "plan/parallelism", "parallelism.data", 6, 21),
    Broken(
        MODEL + "parallelism: {data: 2}\nhardware: {num_threads: 16}\n",
        "plan/threads", "hardware.num_threads", 7, 25,
    ),
    Broken(
        MODEL + "parallelism: {data: 4, data_parallel_size_local: 2}\n",
        "plan/replicas", "parallelism.data_parallel_size_local", 6, 50,
    ),
    Broken(
        MODEL + "parallelism: {data: 4, data_parallel_rank: 1, data_parallel_size_local: 2}\n",
        "plan/replicas", "parallelism.data_parallel_size_local", 6, 73,
    ),
    Broken(
        MODEL + "parallelism: {data: 4, data_parallel_start_rank: 1}\n",
        "plan/replicas", "parallelism.data_parallel_start_rank", 6, 50,
    ),
    Broken(
        MODEL + "parallelism: {data: 4, data_parallel_hybrid_lb: true, data_parallel_start_rank: 2}\n",
        "plan/replicas", "parallelism.data_parallel_start_rank", 6, 81,
    ),
    Broken(
        MODEL + "parallelism: {data: 2}\nendpoints: {http: {api_server_count: 2}}\n",
        "plan/replicas", "endpoints.http.api_server_count", 7, 38,
    ),
    Broken(
        MODEL + "endpoints: {http: {api_server_count: 2, disable_frontend_multiprocessing: true}}\n",
        "plan/one-process", "endpoints.http.api_server_count", 6, 38,
    ),
    Broken(
        MODEL + "parallelism: {data: 2}\nendpoints: {http: {disable_frontend_multiprocessing: true}}\n",
        "plan/one-process", "parallelism.data", 6, 21,
    ),
    Broken(
        MODEL + "restart: {max_restarts: 2}\nendpoints: {http: {disable_frontend_multiprocessing: true}}\n",
        "plan/one-process", "restart.max_restarts", 6, 25,
    ),
    Broken(MODEL + "hardware: {num_threads: 4096}\n", "plan/threads", "hardware.num_threads", 6, 25),
    Broken(MODEL + "hardware: {kernels: {kernel_set: cpu-avx1024}}\n", "plan/kernel-set",
           "hardware.kernels.kernel_set", 6, 34),
    Broken(MODEL + "hardware: {kernels: {kernel_set: cuda}}\n", "plan/kernel-set",
           "hardware.kernels.kernel_set", 6, 34),
    Broken(MODEL + "hardware: {kernels: {kernel_set: cpu-amx}}\n", "plan/kernel-set",
           "hardware.kernels.kernel_set", 6, 34),
    Broken(MODEL + "hardware: {memory: {cpu_offload: 1GiB}}\n", "plan/offload", "hardware.memory.cpu_offload", 6, 34),
    Broken(MODEL + "hardware: {profile: other}\n", "plan/profile", "hardware.profile", 6, 21),
    Broken(MODEL + "hardware: {device: cuda}\n", "plan/device", "hardware.device", 6, 20),
    Broken(MODEL + "slo: {ttft_p95: 1s, gate: {input_len: 4096}}\n", "plan/gate", "slo.gate.input_len", 6, 39),
    Broken(MODEL + "cache: {block_size: 1}\n", "plan/block-size", "cache.block_size", 6, 21),
    Broken(MODEL + "cache: {state_snapshots: 4}\n", "plan/state-snapshots", "cache.state_snapshots", 6, 26),
    Broken(MODEL + "cache: {dtype: fp8_inc}\n", "plan/not-built", "cache.dtype", 6, 16),
    Broken(MODEL + "scheduler: {max_num_batched_tokens: 2}\n", "plan/budget",
           "scheduler.max_num_batched_tokens", 6, 37),
    Broken(
        MODEL + "parallelism: {enable_multimodal_encoder_data_parallel: true}\n",
        "plan/not-built", "parallelism.enable_multimodal_encoder_data_parallel", 6, 56,
    ),
    Broken(MODEL + "lora: {target_modules: [head]}\n", "plan/adapters", "lora", 6, 7),
    Broken(MODEL + "speculative: {draft_tensor_parallel_size: 2}\n", "plan/draft-model",
           "speculative.draft_tensor_parallel_size", 6, 43),
    Broken(MODEL + "speculative: {method: mtp}\n", "plan/draft-head", "speculative.method", 6, 23),
    Broken(MODEL, "plan/architecture", "model.source", 5, 11, "unknown"),
    Broken(MODEL, "plan/quantization", "model.quantization", 4, 1, "spqr"),
    Broken(MODEL, "plan/storage", "model.source", 5, 11, "f8"),
    Broken(MODEL, "plan/tokenizer", "model.source", 5, 11, "no-tokenizer"),
    Broken(MODEL, "plan/tokenizer", "model.source", 5, 11, "sentencepiece"),
    Broken(MODEL + "  tokenizer_mode: mistral\n  chat_template: chatml\n", "plan/tokenizer",
           "model.chat_template", 7, 18),
    Broken(MODEL + "  tokenizer_mode: mistral\n  special_tokens_in_messages: parse\n", "plan/tokenizer",
           "model.special_tokens_in_messages", 7, 31),
    Broken(MODEL + "  tokenizer_mode: slow\n"
           + "decoding: {structured_output: guidance}\n", "plan/tokenizer", "decoding.structured_output", 7, 31),
    Broken(MODEL, "plan/weights", "model.source", 5, 11, "incomplete"),
    Broken(MODEL, "plan/weights", "model.source", 5, 11, "unread"),
    Broken(MODEL, "plan/weights", "model.source", 5, 11, "misshapen"),
)  # fmt: skip
