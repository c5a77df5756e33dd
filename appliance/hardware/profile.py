"""Profile: a match rule over hardware facts, kernel preferences and defaults. Values only; `select` chooses one."""

from typing import Any, Literal

import msgspec

from appliance.hardware.facts import HardwareFacts
from appliance.hardware.speed import CardFigures, KernelShares, Speed, device_speed

PROFILE_VERSION = 1

DeviceKind = Literal["cpu", "cuda", "rocm"]
SupportClass = Literal["tested here", "compiled here", "untested"]

# What a predicate may ask about. Accelerator facts hold when every accelerator of the machine satisfies them.
FactName = Literal[
    "os",
    "cpu.vendor", "cpu.architecture", "cpu.flags", "cpu.num_cores", "cpu.num_numa_nodes",
    "memory.limit_bytes",
    "accelerators.count", "accelerators.vendor", "accelerators.architecture", "accelerators.memory_bytes",
]  # fmt: skip


class Predicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One condition on one fact. Exactly one of the operators below `fact` is given."""

    fact: FactName
    equals: str | int | None = None
    one_of: tuple[str, ...] | None = None
    contains_all: tuple[str, ...] | None = None
    at_least: int | None = None
    at_most: int | None = None

    def __post_init__(self) -> None:
        """Raises ValueError unless exactly one operator is given."""
        if len(self._given()) != 1:
            raise ValueError(f"the condition on {self.fact} needs exactly one of {', '.join(OPERATORS)}")

    @property
    def operator(self) -> str:
        return self._given()[0]

    @property
    def operand(self) -> Any:
        return getattr(self, self.operator)

    def _given(self) -> list[str]:
        return [name for name in OPERATORS if getattr(self, name) is not None]


OPERATORS = ("equals", "one_of", "contains_all", "at_least", "at_most")


class ProfileDefaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `auto` becomes on this hardware, before the model and memory have their say."""

    block_size: int  # tokens
    max_num_seqs: int
    max_num_batched_tokens: int
    dtype: Literal["f32", "bf16", "f16"]  # of activations
    kv_cache_dtype: Literal["f32", "bf16", "f16", "int8", "fp8_e4m3", "fp8_e5m2"]
    memory_utilization: float  # part of the device's memory, 0 to 1


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    name: str
    description: str
    device: DeviceKind
    priority: int  # of the profiles that match, the highest is taken; two that are equal are an error
    match: tuple[Predicate, ...]  # all must hold
    kernel_sets: tuple[str, ...]  # in order of preference
    support: SupportClass
    cards: tuple[CardFigures, ...] = ()  # of the generation
    kernel_shares: KernelShares | None = None  # of a GPU's bandwidth and peak
    context_bytes: int = 0  # of a device's memory, for the driver's context, loaded kernels and handles of libraries
    defaults: ProfileDefaults

    def speed(self, facts: HardwareFacts) -> Speed | None:
        """Returns the figures of a machine of this profile; None where nothing was measured and no card is known."""
        return facts.measured if self.device == "cpu" else device_speed(facts, self.cards, self.kernel_shares)
