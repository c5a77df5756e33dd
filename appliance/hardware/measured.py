"""Measured figures of a machine, kept in the cache under the identity of its hardware."""

import os
from pathlib import Path

import msgspec

from appliance.base import environ
from appliance.base.hashing import sha256_json
from appliance.hardware.facts import HardwareFacts, MeasuredFacts


def load_measured(facts: HardwareFacts) -> HardwareFacts:
    """The facts with what was measured on this hardware before; as they are when nothing was."""
    try:
        kept = measured_path(facts).read_bytes()
        return msgspec.structs.replace(facts, measured=msgspec.json.decode(kept, type=MeasuredFacts))
    except OSError:
        return facts  # nothing was measured, or the cache may not be read
    except msgspec.DecodeError:
        return facts  # written by another version: as good as not measured


def store_measured(facts: HardwareFacts, measured: MeasuredFacts) -> Path:
    """Keep the figures for the next probe; the file's path."""
    path = measured_path(facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}")
    temporary.write_bytes(msgspec.json.encode(measured))
    os.replace(temporary, path)
    return path


def measured_path(facts: HardwareFacts) -> Path:
    """The same cores of the same CPU and the same GPUs share a file; another affinity or quota is another machine."""
    identity = msgspec.to_builtins({"cpu": facts.cpu, "memory": facts.memory.total_bytes})
    del identity["cpu"]["numa_nodes"]  # it follows from the others
    if facts.accelerators:
        identity["accelerators"] = [[each.name, each.architecture, each.memory_bytes] for each in facts.accelerators]
    return environ.cache_dir() / "hardware" / f"{sha256_json(identity)[:32]}.json"
