"""How fast a machine is: what was measured there, or for a GPU what the profile of its generation says of the card."""

from typing import Literal

import msgspec

from appliance.hardware.facts import AcceleratorFacts, HardwareFacts, MeasuredFacts

FigureOrigin = Literal["measured", "data sheet"]
# Of the data sheet's bandwidth and peak, what copies and products of an H100 SXM were measured to reach.
SHEET_BANDWIDTH, SHEET_PEAK = 0.90, 0.74


class CardFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A card of a generation. name: a part of the accelerator's name; of several that fit the longest counts. peaks:
    operations a second of dense products, by type."""

    name: str
    bandwidth: float  # bytes a second
    peaks: dict[Literal["f32", "bf16", "f8", "int8"], float]
    origin: FigureOrigin


class KernelShares(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What kernels reach of bandwidth and peak, and what one costs that does nothing. origin: where it was measured."""

    few_rows: float  # of the bandwidth: products of up to 64 rows with floats
    quantized: float  # of the bandwidth: products of few rows with codes
    cached_keys: float  # of the bandwidth: attention of one new token
    some_rows: float  # of the peak: products of up to 512 rows
    many_rows: float  # of the peak
    prompt_attention: float  # of the peak
    launch_s: float  # of a kernel, in a graph
    step_s: float  # of a step: upload, download, and what the host does between two
    origin: str


class DeviceSpeed(msgspec.Struct, frozen=True):
    """A GPU's figures: what copies and products reach, and what of that kernels do."""

    bandwidth: float
    peaks: dict[str, float]
    shares: KernelShares
    origin: FigureOrigin

    @property
    def described(self) -> str:
        """Says where the figures come from."""
        source = "measured" if self.origin == "measured" else "of the data sheet, as far as an H100 reaches its own"
        return f"{self.bandwidth / 1e9:,.0f} GB/s {source}; kernels {self.shares.origin}"


Speed = MeasuredFacts | DeviceSpeed


def device_speed(facts: HardwareFacts, cards: tuple[CardFigures, ...], shares: KernelShares | None) -> Speed | None:
    """Returns the figures of the slowest accelerator: what `doctor --measure` found, else those of its card. None if
    neither is known."""
    if shares is None or not facts.accelerators:
        return None
    found = facts.measured.device if facts.measured is not None else None
    if found is not None:
        return DeviceSpeed(found.copy_bandwidth, found.peaks, shares, "measured")
    speeds = [_of_card(each, cards, shares) for each in facts.accelerators]
    known = [speed for speed in speeds if speed is not None]
    return min(known, key=lambda speed: speed.bandwidth) if len(known) == len(speeds) else None


def _of_card(accelerator: AcceleratorFacts, cards: tuple[CardFigures, ...], shares: KernelShares) -> DeviceSpeed | None:
    fitting = [card for card in cards if card.name in accelerator.name]
    if not fitting:
        return None
    card = max(fitting, key=lambda each: len(each.name))
    bandwidth, peak = (1.0, 1.0) if card.origin == "measured" else (SHEET_BANDWIDTH, SHEET_PEAK)
    peaks: dict[str, float] = {name: peak * figure for name, figure in card.peaks.items()}
    return DeviceSpeed(bandwidth * card.bandwidth, peaks, shares, card.origin)
