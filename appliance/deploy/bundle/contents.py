"""What a bundle says about itself, and what a plan is compiled from again."""

from typing import Any, Final

import msgspec

from appliance.checkpoint.adapter import AdapterFacts
from appliance.checkpoint.modelling import Modelling
from appliance.plan.inputs import DraftModelFiles

BUNDLE_VERSION: Final = 1

MANIFEST: Final = "bundle.json"
SPEC: Final = "spec.yaml"
FACTS: Final = "hardware.json"
MODEL: Final = "model.json"
PLAN: Final = "plan.json"
KERNELS: Final = "kernels.json"
BOOT: Final = "boot.json"
HISTORY: Final = "history.json"
LOG: Final = "server.log"
LOCK: Final = "deployment.lock"


class FilesRecord(msgspec.Struct, frozen=True, kw_only=True):
    """ResolvedFiles as data."""

    tokenizer_path: str | None = None
    config_path: str | None = None
    chat_template: str | None = None
    generation_config: dict[str, Any] | None = None
    packed_dir: str | None = None
    modelling: Modelling | None = None
    adapters: tuple[AdapterFacts, ...] = ()
    draft_model: DraftModelFiles | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """`missing`: parts that could not be had, and why. `diagnostics`: of a spec that is invalid, without its values."""

    version: int = BUNDLE_VERSION
    name: str = ""
    appliance: str
    python: str
    platform: str
    packages: dict[str, str]
    profile: str = ""
    files: FilesRecord = FilesRecord()
    masked: tuple[str, ...] = ()
    applied_engine_sha256: str = ""  # of the plan that runs, from the spec with its secrets
    missing: dict[str, str] = {}
    diagnostics: list[dict[str, Any]] = []
