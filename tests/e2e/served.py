"""A random model with a byte tokenizer, made without torch, and a server of it as a spec describes it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import load_file, save_file

from appliance.plan.hashes import with_hashes
from appliance.plan.prepare import prepare
from tests.server.harness import BOS, EOS, FIRST_BYTE, TEMPLATE, Server, byte_tokenizer

NAME = "random"
CONTEXT = 4096
_HIDDEN, _INNER, _HEADS, _KV_HEADS, _HEAD_DIM = 64, 96, 4, 2, 16
_QUERY, _KEY = _HEADS * _HEAD_DIM, _KV_HEADS * _HEAD_DIM
_SHAPES = {
    "self_attn.q_proj": (_QUERY, _HIDDEN), "self_attn.k_proj": (_KEY, _HIDDEN), "self_attn.v_proj": (_KEY, _HIDDEN),
    "self_attn.o_proj": (_HIDDEN, _QUERY), "mlp.gate_proj": (_INNER, _HIDDEN), "mlp.up_proj": (_INNER, _HIDDEN),
    "mlp.down_proj": (_HIDDEN, _INNER),
}  # fmt: skip
NUM_ADAPTED = 2 * len(_SHAPES)  # modules of an adapter, which is for all linear maps of both layers
_SPEC = """\
api_version: appliance/v1
kind: Deployment
name: random
model: {{source: {source}, served_names: [random, alias]}}
cache: {{num_blocks: 8192}}
scheduler: {{max_num_seqs: 32}}
endpoints: {{http: {{enable_server_load_tracking: true}}}}
restart: {{policy: on-failure, max_restarts: 3, backoff: 500ms}}
"""


def make_random_model(
    folder: Path, context: int = CONTEXT, num_layers: int = 2, seed: int = 7, inner: int = _INNER
) -> None:
    """A Llama of 0.1M weights, or more where it is wider, that writes printable ASCII and, as good as never, the end
    token."""
    tokenizer = byte_tokenizer()
    vocab_size = tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", "chat_template": TEMPLATE}))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab_size,
        "hidden_size": _HIDDEN, "intermediate_size": inner, "num_hidden_layers": num_layers,
        "num_attention_heads": _HEADS, "num_key_value_heads": _KV_HEADS, "head_dim": _HEAD_DIM, "hidden_act": "silu",
        "max_position_embeddings": context, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False,
        "bos_token_id": BOS, "eos_token_id": EOS, "torch_dtype": "float32",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    save_file(_weights(vocab_size, num_layers, seed, inner), folder / "model.safetensors", metadata={"format": "pt"})


def make_random_mixture(folder: Path, context: int = CONTEXT, num_experts: int = 6) -> None:
    """The same model with experts in place of its inner layers, two of them chosen for a token."""
    make_random_model(folder, context)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    config |= {"num_local_experts": num_experts, "num_experts_per_tok": 2}
    (folder / "config.json").write_text(json.dumps(config))
    generator, weights = np.random.default_rng(11), load_file(folder / "model.safetensors")
    names = {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
    for name in [name for name in weights if ".mlp." in name]:
        dense = weights.pop(name)
        layer, _, kind = name.removesuffix(".weight").partition(".mlp.")
        for expert in range(num_experts):
            other = generator.standard_normal(dense.shape).astype(np.float32) * dense.std()
            weights[f"{layer}.block_sparse_moe.experts.{expert}.{names[kind]}.weight"] = other
        router = generator.standard_normal((num_experts, _HIDDEN)).astype(np.float32)
        weights[f"{layer}.block_sparse_moe.gate.weight"] = router
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _weights(vocab_size: int, num_layers: int, seed: int, inner: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, scale: float) -> np.ndarray:
        return (generator.standard_normal((rows, columns)) * scale).astype(np.float32)

    head = np.zeros((vocab_size, _HIDDEN), np.float32)
    head[FIRST_BYTE + 32 : FIRST_BYTE + 127] = matrix(95, _HIDDEN, 0.5)
    weights = {
        "model.embed_tokens.weight": matrix(vocab_size, _HIDDEN, 1.0),
        "model.norm.weight": np.ones(_HIDDEN, np.float32),
        "lm_head.weight": head,
    }
    for layer in range(num_layers):
        prefix = f"model.layers.{layer}."
        for name, shape in _SHAPES.items():
            rows, columns = (inner if size == _INNER else size for size in shape)
            weights[f"{prefix}{name}.weight"] = matrix(rows, columns, 1.5 * columns**-0.5)
        for name in ("input_layernorm", "post_attention_layernorm"):
            weights[f"{prefix}{name}.weight"] = np.ones(_HIDDEN, np.float32)
    return weights


def make_random_adapter(folder: Path, seed: int, rank: int = 4, strength: float = 0.3) -> None:
    """A LoRA adapter of the random model of two layers, as peft saves it, that changes all that it writes.
    strength: of lora_B; 0 leaves the model as it is."""
    generator = np.random.default_rng(seed)
    tensors = {}
    for layer in range(2):
        for name, (rows, columns) in _SHAPES.items():
            stem = f"base_model.model.model.layers.{layer}.{name}"
            for part, shape, scale in (("A", (rank, columns), 0.3), ("B", (rows, rank), strength)):
                values = generator.standard_normal(shape) * scale
                tensors[f"{stem}.lora_{part}.weight"] = values.astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none", "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


@contextmanager
def serving(folder: Path, model: Path, *overrides: str, hardware: str | None = None) -> Iterator[Server]:
    """A ready server on a port of the system's choice. `overrides` are PATH=VALUE, as of `appliance apply --set`.
    hardware: facts of a machine for which it is planned; None: this one."""
    spec = folder / "spec.yaml"
    spec.write_text(_SPEC.format(source=json.dumps(str(model))))
    plan = prepare(spec, overrides, hardware, to_run=hardware is None).plan
    listen = msgspec.structs.replace(plan.serving.listen, port=0)
    plan = with_hashes(msgspec.structs.replace(plan, serving=msgspec.structs.replace(plan.serving, listen=listen)))
    path = folder / "plan.json"
    path.write_bytes(msgspec.json.encode(plan))
    server = Server(path, folder)
    try:
        server.wait_for("ready", timeout_s=60.0)
        yield server
    finally:
        server.close()


def figures(server: Server) -> dict[str, float]:
    """The server's own metrics, summed over labels."""
    sums: dict[str, float] = {}
    with server.http() as http:
        for line in http.get("/metrics").text.splitlines():
            if line.startswith("appliance_"):
                name, value = line.split("{")[0].removeprefix("appliance_"), float(line.rsplit(" ", 1)[1])
                sums[name] = sums.get(name, 0.0) + value
    return sums


def num_open(server: Server) -> int:
    with server.http() as http:
        load: int = http.get("/load").json()["server_load"]
    return load


def is_idle(server: Server) -> bool:
    """Nothing is open, runs or waits, and no block is in use."""
    found = figures(server)
    gauges = ("requests_running", "requests_waiting", "kv_cache_usage_ratio")
    return num_open(server) == 0 and all(found[name] == 0.0 for name in gauges)
