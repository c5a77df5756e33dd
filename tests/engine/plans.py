"""Plans for engine tests, with only the fields that matter here."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from appliance.engine.scripted import Script
from appliance.plan.types import EnginePlan


def scripted_plan(folder: Path, script: Script | None = None, **changes: object) -> EnginePlan:
    """A plan of the scripted back-end. `changes` go to the one section that has the field; a mapping is merged."""
    path = folder / "script.json"
    path.write_bytes(msgspec.json.encode(script or Script()))
    plan = {
        "appliance_version": "0", "name": "scripted", "device": "cpu", "hardware": "test", "hardware_sha256": "",
        "profile": "test",
        "model": {
            "path": str(path), "format": "scripted", "architecture": "scripted", "header_sha256": "",
            "served_names": ["scripted"], "task": "generate", "max_model_len": 256, "seed": 0, "tokenizer_path": "",
            "skip_tokenizer": True, "chat_template": None, "chat_template_content_format": "string",
            "default_sampling": {}, "max_logprobs": 20, "logprobs_mode": "raw_logprobs",
            "logits_processor_pattern": None,
        },
        "precision": {"weights": [], "activations": "f32", "quantize_activations": False, "kv_dtype": "f32"},
        "kernels": {"kernel_set": "scripted", "support": "tested here", "choices": [], "num_threads": 1},
        "memory": [],
        "cache": {
            "block_size": 16, "num_blocks": 64, "prefault_blocks": 0, "prefix_caching": True,
            "hash_algorithm": "sha256",
        },
        "scheduler": {
            "policy": "fcfs", "max_num_seqs": 8, "max_num_batched_tokens": 64, "chunked_prefill": True,
            "max_num_partial_prefills": 1, "max_long_partial_prefills": 1, "long_prefill_token_threshold": 0,
            "max_waiting": None,
        },
        "parallel": {"tensor": 1, "pipeline": 1, "data": 1, "expert": False},
        "restart": {
            "policy": "never", "max_restarts": 0, "window_s": 60.0, "backoff_s": 0.0, "heartbeat_timeout_s": 5.0,
        },
        "serving": {
            "listen": {"host": "127.0.0.1", "port": 0},
            "http": {"root_path": "", "keep_alive_s": 5.0, "request_id_headers": False},
            "routes": {"apis": ["openai"], "metrics": True, "docs": False, "server_load_tracking": False},
            "auth": {"key_hashes": {}},
            "limits": {"max_body_bytes": 1 << 20, "max_header_bytes": 65536, "max_headers": 256, "max_n": 16},
            "logs": {"level": "info", "log_requests": False, "max_log_len": None},
            "store": {}, "requests": {}, "structured": {}, "parsers": {},
            "answers": {
                "force_include_usage": False, "prompt_tokens_details": False, "return_tokens_as_token_ids": False,
            },
            "shutdown_timeout_s": 5.0,
        },
        "slo": {}, "batch": {}, "bench": {}, "decisions": [], "spec_sha256": "", "engine_sha256": "",
        "serving_sha256": "",
    }  # fmt: skip
    whole: dict[str, Any] = msgspec.to_builtins(msgspec.convert(plan, EnginePlan))
    for name, value in changes.items():
        homes = list(_homes(whole, name))
        assert len(homes) == 1, f"{len(homes)} sections have {name}"
        (home,), given = homes, msgspec.to_builtins(value)
        is_merged = isinstance(given, dict) and isinstance(home[name], dict)
        home[name] = {**home[name], **given} if is_merged else given
    return msgspec.convert(whole, EnginePlan)


def _homes(section: dict[str, Any], name: str) -> Iterator[dict[str, Any]]:
    """Every mapping at or below `section` that has the field."""
    if name in section:
        yield section
    for below in section.values():
        if isinstance(below, dict):
            yield from _homes(below, name)
