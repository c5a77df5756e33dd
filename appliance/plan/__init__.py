"""(Spec, HardwareFacts, Profile, ModelFacts) -> EnginePlan; pure but for `prepare`, which finds the four."""

from appliance.plan.boot import BootReport, compare_boot
from appliance.plan.compile import compile_plan
from appliance.plan.context import with_config_overrides
from appliance.plan.inputs import ResolvedFiles
from appliance.plan.prepare import Prepared, prepare
from appliance.plan.types import EnginePlan

__all__ = [
    "BootReport",
    "EnginePlan",
    "Prepared",
    "ResolvedFiles",
    "compare_boot",
    "compile_plan",
    "prepare",
    "with_config_overrides",
]
