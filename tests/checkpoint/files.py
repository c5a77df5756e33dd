"""Tiny checkpoints written on the fly: GGUF through the reference writer, safetensors by hand."""

import json
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Metadata = dict[str, Any]

LLAMA: Metadata = {
    "llama.block_count": 2,
    "llama.context_length": 4096,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "llama.rope.freq_base": 500000.0,
    "llama.rope.dimension_count": 16,
}


def llama_tensors(layers: int = 2, vocab: int = 32) -> dict[str, np.ndarray]:
    """F32 tensors of the llama family, GGUF names, row-major."""
    shapes = {"attn_norm": (64,), "ffn_norm": (64,), "attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64)}
    shapes |= {"attn_output": (64, 64), "ffn_gate": (96, 64), "ffn_up": (96, 64), "ffn_down": (64, 96)}
    tensors = {"token_embd.weight": (vocab, 64), "output_norm.weight": (64,), "output.weight": (vocab, 64)}
    tensors |= {f"blk.{n}.{name}.weight": shape for n in range(layers) for name, shape in shapes.items()}
    generator = np.random.default_rng(0)
    return {name: generator.standard_normal(shape, dtype=np.float32) for name, shape in tensors.items()}


def llama_folder_tensors(layers: int = 2, vocab: int = 32) -> dict[str, np.ndarray]:
    """The same shapes under the names of a Hugging Face folder."""
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_output": "self_attn.o_proj",
        **{f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"},
        **{f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    }
    top = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    top |= {f"blk.{n}.{part}": f"model.layers.{n}.{name}" for n in range(layers) for part, name in parts.items()}
    return {f"{top[name.removesuffix('.weight')]}.weight": data for name, data in llama_tensors(layers, vocab).items()}


def write_gguf(
    path: Path,
    architecture: str = "llama",
    metadata: Metadata | None = None,
    tensors: dict[str, np.ndarray] | None = None,
    quantized: dict[str, tuple[np.ndarray, gguf.GGMLQuantizationType]] | None = None,
) -> Path:
    """metadata: ints become uint32, floats float32, lists arrays. quantized: f32 arrays stored as a block type."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (LLAMA if metadata is None else metadata).items():
        _add(writer, key, value)
    for name, tensor in (llama_tensors() if tensors is None else tensors).items():
        writer.add_tensor(name, tensor)
    for name, (tensor, kind) in (quantized or {}).items():
        writer.add_tensor(name, gguf.quants.quantize(tensor, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case list():
            writer.add_array(key, value)


def gguf_bytes(
    *entries: bytes,
    tensors: tuple[bytes, ...] = (),
    data: bytes = b"",
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """A GGUF file put together by hand, to say what the writer refuses to. Data starts at a multiple of 32."""
    num_tensors, num_entries = counts or (len(tensors), len(entries))
    header = b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_entries) + b"".join(entries) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key: str, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(name: str, shape: tuple[int, ...], kind: int = 0, offset: int = 0) -> bytes:
    """shape: innermost first, as the file has it."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def write_safetensors(path: Path, tensors: dict[str, np.ndarray], dtypes: dict[str, str] | None = None) -> Path:
    """dtypes: the name in the header where it is not the array's own (bf16 is given as uint16)."""
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "uint16": "BF16", "bool": "BOOL", "uint8": "U8"}
    names |= {"int8": "I8", "int32": "I32", "int64": "I64"}
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position, blobs = 0, []
    for name, array in tensors.items():
        dtype = (dtypes or {}).get(name, names[str(array.dtype)])
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
        blobs.append(array.tobytes())
    return write_raw_safetensors(path, header, b"".join(blobs))


def write_raw_safetensors(path: Path, header: Any, data: bytes) -> Path:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(raw)) + raw + data)
    return path


def write_folder(root: Path, config: dict[str, Any], tensors: dict[str, np.ndarray] | None = None) -> Path:
    """A Hugging Face folder with one weight file."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text(json.dumps(config))
    write_safetensors(root / "model.safetensors", tensors or {"model.norm.weight": np.ones(4, np.float32)})
    return root
