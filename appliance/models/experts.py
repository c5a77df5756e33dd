"""The common parts of families with experts: which layers have them, and where a checkpoint keeps their tensors.

A checkpoint has a tensor for each expert (`experts.<e>.up_proj.weight`), or stacks of all (`experts.up_proj.weight`, as
GGUF files have them).
"""

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from appliance.layers.spec import ExpertsSpec, FeedForwardSpec, Transform
from appliance.models.errors import ModelError, Problem
from appliance.models.family import Model, Part


class ExpertModules(msgspec.Struct, frozen=True):
    """Module names below a layer. One module for gate and up has both, the gate's rows first, or in turn with those of
    up if they alternate.

    correction: the tensor itself, which is no module's weight. correction_is_row: it is [1, num_experts]. suffix: what
    ends the name of a weight; without one, a stack is a parameter, and that of biases is named `<stack>_bias`.
    transform: how the matrices of experts lie. shared_parts: the modules of the shared block's gate, up and down.
    latent: those before and after the experts of a latent size.
    """

    experts: str = "mlp.experts"
    router: str = "mlp.gate"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    correction: str = "mlp.gate.e_score_correction_bias"
    correction_is_row: bool = False
    shared: str = "mlp.shared_experts"
    shared_gate: str = "mlp.shared_expert_gate"
    shared_parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    latent: tuple[str, str] = ("mixer.fc1_latent_proj", "mixer.fc2_latent_proj")
    suffix: str = ".weight"
    alternate: bool = False
    transform: Transform = "none"


MOST_EXPERTS: Final = 1 << 14


MIXTRAL_MODULES = ExpertModules(
    experts="block_sparse_moe.experts",
    router="block_sparse_moe.gate",
    gate="w1",
    up="w3",
    down="w2",
    correction="block_sparse_moe.e_score_correction_bias",
)


class Mixture(msgspec.Struct, frozen=True):
    """The feed-forwards of a family with experts. is_sparse: by layer, whether it has experts, or the dense one."""

    spec: ExpertsSpec
    is_sparse: tuple[bool, ...]
    modules: ExpertModules
    is_stacked: bool

    @classmethod
    def of(
        cls,
        model: Model,
        spec: ExpertsSpec,
        modules: ExpertModules | None = None,
        is_sparse: tuple[bool, ...] | None = None,
    ) -> "Mixture":
        """Returns a mixture in which every layer has experts unless `is_sparse` says otherwise.

        Raises ModelError with all counts of the config that do not go together.
        """
        if problems := tuple(_problems(spec)):
            raise ModelError(*problems)
        modules = modules or ExpertModules()
        every = (True,) * model.config.num_layers
        is_stacked = model.has_tensor(f".{modules.experts}.{modules.down}{modules.suffix}")
        return cls(spec, is_sparse or every, modules, is_stacked)

    def feed_forward(self, layer: int, dense: FeedForwardSpec) -> ExpertsSpec | FeedForwardSpec:
        return self.spec if self.is_sparse[layer] else dense

    def parts(self) -> Iterator[Part]:
        """Returns the weights of the experts of a layer, of its router and of the shared block."""
        spec, names = self.spec, self.modules
        yield Part("router", names.router, spec.routing.bias)
        if spec.routing.correction:
            yield Part("router.correction", names.correction, suffix="", index=0 if names.correction_is_row else None)
        for expert in range(spec.num_experts):
            yield from self._expert(expert)
        if spec.latent_size is not None:
            yield from (
                Part(f"latent_{name}", module) for name, module in zip(("in", "out"), names.latent, strict=True)
            )
        if spec.shared is not None:
            yield from block_parts(spec.shared, "shared.", f"{names.shared}.", names.shared_parts)
        if spec.shared_gate:
            yield Part("shared_gate", names.shared_gate)

    def _expert(self, expert: int) -> Iterator[Part]:
        names, rows, bias = self.modules, self._rows(), self.spec.bias
        of_gate = {"gate": names.gate} if self.spec.gated else {}
        for name, module in {**of_gate, "up": names.up, "down": names.down}.items():
            weight = Part(
                name=f"experts.{expert}.{name}",
                module=f"{names.experts}." + (module if self.is_stacked else f"{expert}.{module}"),
                bias=bias and bool(names.suffix),
                transform=names.transform,
                rows=rows.get(name),
                index=expert if self.is_stacked else None,
                suffix=names.suffix,
            )
            yield weight
            if bias and not names.suffix:
                yield replace(weight, name=f"{weight.name}.bias", suffix="_bias", transform="none")

    def _rows(self) -> Mapping[str, tuple[int, int] | tuple[int, int, int]]:
        """Returns which rows of their one module gate and up are."""
        width, names = self.spec.width, self.modules
        if names.gate == names.up and names.alternate:
            return {"gate": (0, 2 * width, 2), "up": (1, 2 * width, 2)}
        return _joined_rows(width) if names.gate == names.up else {}


def _problems(spec: ExpertsSpec) -> Iterator[Problem]:
    experts, routing = spec.num_experts, spec.routing
    if experts > MOST_EXPERTS:  # before the parts of each are listed
        yield Problem(f"{experts} experts a layer are more than any model has", allowed=f"up to {MOST_EXPERTS}")
    if not 1 <= spec.num_chosen <= experts:
        yield Problem(f"{spec.num_chosen} experts are to be chosen for a token of {experts}", allowed=f"1 to {experts}")
    groups, chosen = routing.num_groups, routing.num_chosen_groups
    if not 1 <= chosen <= groups or experts % groups:
        yield Problem(f"{experts} experts do not form {groups} groups of which {chosen} are chosen")
    elif chosen * (experts // groups) < spec.num_chosen:
        yield Problem(f"{chosen} of {groups} groups have fewer than the {spec.num_chosen} experts to be chosen")


def block_parts(
    spec: FeedForwardSpec,
    prefix: str,
    where: str,
    modules: tuple[str, str, str],
    transform: Transform = "none",
    up_first: bool = False,
) -> Iterator[Part]:
    """Returns the weights of one feed-forward, whose gate, up and down lie in `modules`, with `where` before each. One
    module for gate and up has both, the gate's rows first unless up_first."""
    rows = _joined_rows(spec.intermediate_size, up_first) if modules[0] == modules[1] else {}
    biases = {"down": spec.bias if spec.down_bias is None else spec.down_bias}
    for name, module in zip(("gate", "up", "down"), modules, strict=True):
        if spec.gated or name != "gate":
            yield Part(
                f"{prefix}{name}", f"{where}{module}", biases.get(name, spec.bias), transform, rows=rows.get(name)
            )


def _joined_rows(width: int, up_first: bool = False) -> Mapping[str, tuple[int, int]]:
    first, second = ("up", "gate") if up_first else ("gate", "up")
    return {first: (0, width), second: (width, 2 * width)}
