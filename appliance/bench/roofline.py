"""The floor of the profiled steps on a measured machine, what was reached of it, and where the rest went.

An operator's floor is the longer of reading its bytes at the measured bandwidth and computing its operations at the
measured peak of its arithmetic (Williams et al. 2009, "Roofline"). Operators follow one another, so floors add up.
The floor is of the machine at its best; what it gave around the run makes a second one, which a busy neighbour raises.
"""

import msgspec

from appliance.base.errors import ApplianceError
from appliance.engine.profile import EngineProfile, OperatorProfile, StepsProfile
from appliance.hardware import load_profiles, select_profile
from appliance.hardware.facts import HardwareFacts, MeasuredDevice, MeasuredFacts

MODEL = "model"  # the phase that operators are part of


class RooflinePart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a step: an operator, or the Python work around the model. Times are seconds a step."""

    name: str
    seconds: float
    floor_s: float = 0.0
    bound: str = ""  # what the floor is made of: "memory", or the arithmetic


class Roofline(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one kind, as averages of a step. Without measured figures every floor is 0.

    given_floor_s: at the rates that the machine gave around the run. shared_keys: cached tokens that decodes did not
    read because another one had.
    """

    kind: str
    steps: int
    tokens: float
    seconds: float
    floor_s: float
    parts: tuple[RooflinePart, ...]  # the slowest first; together they are the step
    given_floor_s: float = 0.0
    shared_keys: float = 0.0

    @property
    def achieved(self) -> float:
        return self.floor_s / self.seconds if self.seconds else 0.0

    @property
    def achieved_of_given(self) -> float:
        return self.given_floor_s / self.seconds if self.seconds else 0.0


def measured_or_refuse(facts: HardwareFacts) -> MeasuredFacts:
    """Returns the figures of the CPU, or of the accelerator whose profile the machine has. Raises ApplianceError when
    this machine was not measured."""
    on_cpu = select_profile(facts, load_profiles()).profile.device == "cpu"
    device = None if facts.measured is None else facts.measured.device
    if facts.measured is None or (device is None and not on_cpu):
        raise ApplianceError(
            "a roofline needs this machine's measured bandwidth and peaks", hint="run: appliance doctor --measure"
        )
    return facts.measured if on_cpu or device is None else rates_of_device(device)


def rates_of_device(device: MeasuredDevice) -> MeasuredFacts:
    """Returns the figures of a GPU as those of a machine."""
    peaks = device.peaks
    return MeasuredFacts(
        read_bandwidth=device.copy_bandwidth, f32_peak=peaks.get("f32"), bf16_peak=peaks.get("bf16"),
        int8_peak=peaks.get("int8"),
    )  # fmt: skip


def rooflines(
    profile: EngineProfile, measured: MeasuredFacts | None, given: MeasuredFacts | None = None
) -> tuple[Roofline, ...]:
    """One a kind of step, those that took longest first. given: what the machine gave around the run."""
    found = [_of_kind(kind, steps, measured, given) for kind, steps in profile.kinds.items()]
    return tuple(sorted(found, key=lambda each: -each.seconds * each.steps))


def _of_kind(kind: str, steps: StepsProfile, measured: MeasuredFacts | None, given: MeasuredFacts | None) -> Roofline:
    operators = [_operator(each, steps.steps, measured) for each in steps.operators]
    in_operators = sum(part.seconds for part in operators)
    around = [
        RooflinePart(name=_phase_name(name), seconds=seconds / steps.steps - (in_operators if name == MODEL else 0.0))
        for name, seconds in steps.phases.items()
    ]
    parts = sorted(operators + around, key=lambda part: -part.seconds)
    return Roofline(
        kind=kind,
        steps=steps.steps,
        tokens=steps.tokens / steps.steps,
        seconds=sum(part.seconds for part in parts),
        floor_s=sum(part.floor_s for part in parts),
        parts=tuple(parts),
        given_floor_s=sum(_operator(each, steps.steps, given).floor_s for each in steps.operators),
        shared_keys=steps.shared_keys / steps.steps,
    )


def _operator(operator: OperatorProfile, steps: int, measured: MeasuredFacts | None) -> RooflinePart:
    floor_s, bound = 0.0, ""
    if measured is not None:
        peak = {"f32": measured.f32_peak, "bf16": measured.bf16_peak, "int8": measured.int8_peak}[operator.unit]
        reading = operator.bytes / measured.read_bandwidth
        computing = operator.operations / peak if peak else 0.0
        floor_s = max(reading, computing) / steps
        bound = "" if floor_s == 0 else "memory" if reading >= computing else operator.unit
    return RooflinePart(name=operator.label, seconds=operator.seconds / steps, floor_s=floor_s, bound=bound)


def _phase_name(phase: str) -> str:
    return "python: the call, and between operators" if phase == MODEL else f"python: {phase}"
