"""A result and a comparison as text, one screen each."""

from appliance.bench.replicas import ReplicaShare, balance
from appliance.bench.result import FIGURES, BenchResult, Spread
from appliance.bench.roofline import Roofline
from appliance.bench.scenario import Scenario
from appliance.engine.profile import EngineProfile
from appliance.hardware import MeasuredFacts

_MILLISECONDS = ("ttft", "itl", "tpot", "e2el")
_UNITS = {
    "prefill_throughput": "tok/s",
    "decode_throughput": "tok/s",
    "request_throughput": "req/s",
    "prompt_throughput": "prompt/s",
    "output_throughput": "tok/s",
    "total_throughput": "tok/s",
    "goodput": "req/s",
    "acceptance_length": "tok",
    "duration_s": "s",
}


def unit_of(name: str) -> tuple[str, float]:
    """The unit a figure is shown in, and the factor from its stored value."""
    return ("ms", 1e3) if name.partition("_")[0] in _MILLISECONDS else (_UNITS[name], 1.0)


def render(result: BenchResult) -> str:
    scenario = result.scenario
    last = result.rounds[-1]
    lines = [
        f"{scenario.name} ({scenario.kind}, {scenario.workload}) on {result.model}, {result.target}",
        f"  {last.completed} requests{_to(scenario)}, {last.input_tokens} tokens in ({last.cached_tokens} from the "
        f"prefix cache), {last.output_tokens} out, {last.failed} failed; {len(result.rounds)} rounds",
        "",
        f"  {'figure':<20}{'median':>12}{'min':>12}{'max':>12}",
    ]
    lines += [_row(name, result.figures[name]) for name, _ in FIGURES if name in result.figures]
    lines += _reached(result)
    lines += _shares(result.replicas)
    errors = sorted({record.error for record in result.records if record.error})
    lines += [f"  error: {error}" for error in errors[:5]]
    return "\n".join(lines)


def _shares(replicas: tuple[ReplicaShare, ...]) -> list[str]:
    if not replicas:
        return []
    each = "; ".join(f"engine {one.engine} {one.requests} requests, {one.share:.0%} of the tokens" for one in replicas)
    return ["", f"  {each}; balance {balance(replicas):.2f}"]


def _to(scenario: Scenario) -> str:
    """What requests of models that pool ask for."""
    return "" if scenario.task in ("auto", "generate") else f" to {scenario.task}"


def render_comparison(
    ours: str, theirs: str, table: dict[str, tuple[float, float, float]], same: tuple[int, int] | None = None
) -> str:
    """same: how many requests had the same tokens, and of how many."""
    lines = [f"  {'figure':<20}{ours:>24}{theirs:>24}{'ratio':>10}   (above 1: {ours} is better)"]
    for name, (mine, other, ratio) in table.items():
        unit, factor = unit_of(name)
        lines.append(f"  {name:<20}{mine * factor:>18.2f} {unit:<5}{other * factor:>18.2f} {unit:<5}{ratio:>10.2f}")
    if same is not None:
        lines.append(f"  the same tokens in {same[0]} of {same[1]} requests of the last round")
    return "\n".join(lines)


def render_profile(
    found: tuple[Roofline, ...],
    profile: EngineProfile,
    measured: MeasuredFacts | None = None,
    given: MeasuredFacts | None = None,
) -> str:
    """Steps by kind; who was on a CPU: the engine's threads, and the server where there is one; and the machine's
    rates, where they were looked at."""
    on_cpu = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in profile.threads.items())
    parts = [*map(_roofline, found), f"  on a CPU, of {profile.seconds:.2f} s: {on_cpu}"]
    if measured is not None and given is not None:
        parts.append(f"  the machine gave, around the run, of what doctor measured: {_rates(measured, given)}")
    return "\n\n".join(parts)


def _rates(measured: MeasuredFacts, given: MeasuredFacts) -> str:
    rows = (
        ("read", "GB/s", given.read_bandwidth, measured.read_bandwidth),
        ("f32", "Gop/s", given.f32_peak, measured.f32_peak),
        ("bf16", "Gop/s", given.bf16_peak, measured.bf16_peak),
        ("int8", "Gop/s", given.int8_peak, measured.int8_peak),
    )
    return ", ".join(
        f"{name} {now / 1e9:.1f} of {best / 1e9:.1f} {unit}" for name, unit, now, best in rows if now and best
    )


def _roofline(found: Roofline) -> str:
    """Parts below a thousandth of the step share a line."""
    floor = f"; floor {found.floor_s * 1e3:.3f} ms, reached {found.achieved:.0%}" if found.floor_s else ""
    if found.given_floor_s:
        floor += f" ({found.achieved_of_given:.0%} of what the machine gave)"
    lines = [
        f"  {found.kind}: {found.steps} steps of {found.tokens:.1f} tokens, {found.seconds * 1e3:.3f} ms each{floor}",
        f"    {'part':<42}{'ms':>10}{'share':>8}{'floor':>10}{'reached':>9}",
    ]
    shown = [part for part in found.parts if part.seconds >= found.seconds / 1000]
    for part in shown:
        row = f"    {part.name:<42}{part.seconds * 1e3:>10.3f}{part.seconds / found.seconds:>8.1%}"
        if part.floor_s:
            row += f"{part.floor_s * 1e3:>10.3f}{part.floor_s / part.seconds:>9.0%}  {part.bound}"
        lines.append(row)
    rest = found.seconds - sum(part.seconds for part in shown)
    lines.append(f"    {f'{len(found.parts) - len(shown)} others':<42}{rest * 1e3:>10.3f}{rest / found.seconds:>8.1%}")
    if found.shared_keys:
        lines.append(
            f"    {found.shared_keys:,.0f} cached tokens a step were not read, as another decode had read them"
        )
    return "\n".join(lines)


def _reached(result: BenchResult) -> list[str]:
    """Measured against the plan's estimate, which is the most that the machine allows: its error, in one line."""
    shown = [
        f"{name} {result.figures[name].median / most:.0%} of {most * unit_of(name)[1]:.1f} {unit_of(name)[0]}"
        for name, most in result.floor.items()
        if name in result.figures
    ]
    return [f"  of the plan's estimate: {', '.join(shown)}"] if shown else []


def _row(name: str, spread: Spread) -> str:
    unit, factor = unit_of(name)
    shown = "".join(f"{value * factor:>12.2f}" for value in (spread.median, spread.min, spread.max))
    return f"  {name:<20}{shown}  {unit}"
