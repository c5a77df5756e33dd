"""The passes write decisions, refusals and warnings here. They share nothing else but their results."""

from dataclasses import dataclass, field
from typing import TypeVar

from appliance.base.diagnostics import Diagnostic
from appliance.catalog.degradations import BY_KIND, DegradationKind, Strictness
from appliance.plan.types import Decision, SourceKind
from appliance.spec import LoadedSpec
from appliance.spec.deployment import DeploymentSpec

T = TypeVar("T")
AUTO = "auto"


@dataclass(slots=True)
class Ledger:
    loaded: LoadedSpec
    decisions: list[Decision] = field(default_factory=list)
    refusals: list[Diagnostic] = field(default_factory=list)  # the spec asks for what cannot be
    misfits: list[Diagnostic] = field(default_factory=list)  # the machine is too small
    warnings: list[str] = field(default_factory=list)
    degraded: list[DegradationKind] = field(default_factory=list)
    cannot_run: list[str] = field(default_factory=list)

    def decide(self, path: str, value: T, source: SourceKind, reason: str) -> T:
        """Records why the plan's `path` has `value`, and returns it."""
        shown = list(value) if isinstance(value, tuple) else value  # as JSON would give it back
        self.decisions.append(Decision(path=path, value=shown, source=source, reason=reason))
        return value

    def take(self, path: str, spec_path: str, value: T, reason: str = "") -> T:
        """Records a value that the spec gives, by file, override or default."""
        source = self.source_of(spec_path)
        return self.decide(path, value, source, reason or f"{spec_path}{'' if source != 'default' else ' by default'}")

    def source_of(self, spec_path: str) -> SourceKind:
        is_set = self.loaded.is_set(spec_path)
        for each in self.loaded.sources:
            if spec_path == each.path or (is_set and spec_path.startswith(each.path + ".")):
                return "override"
        return "spec" if is_set else "default"

    def refuse(self, spec_path: str, rule: str, message: str, *, allowed: str = "", hint: str = "") -> None:
        self.refusals.append(self.loaded.diagnostic(spec_path, rule, message, allowed=allowed, hint=hint))

    def misfit(self, spec_path: str, rule: str, message: str, *, allowed: str = "", hint: str = "") -> None:
        self.misfits.append(self.loaded.diagnostic(spec_path, rule, message, allowed=allowed, hint=hint))

    def may_degrade(self, kind: DegradationKind, message: str) -> bool:
        """Returns True if the spec allows this degradation. Under `warn` the message becomes a warning."""
        strictness = strictness_of(self.loaded.spec, kind)
        if strictness == "warn":
            self.warnings.append(message)
        if strictness != "error":
            self.degraded.append(kind)
        return strictness != "error"


def strictness_of(spec: DeploymentSpec, kind: DegradationKind) -> Strictness:
    """Returns what the spec says of one kind of degradation: by its name, else by `strictness` for all kinds."""
    default: Strictness = spec.strictness if BY_KIND[kind].by_strictness else "allow"
    return spec.degradations.get(kind, default)
