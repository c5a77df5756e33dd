"""What the child that asks NVML says of a card."""

import msgspec

from appliance.hardware.facts import AcceleratorFacts


class NamedDevice(msgspec.Struct, frozen=True):
    """uuid: "GPU-...", by which a variable may name the card. It stays out of the facts, which may be shared."""

    uuid: str
    facts: AcceleratorFacts
