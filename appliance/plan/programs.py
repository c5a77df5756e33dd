"""Descriptions of models, made once while a spec is planned."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from appliance.catalog.formats import F32, WeightForm
from appliance.catalog.kernel_sets import KERNEL_SETS, KernelSetFacts
from appliance.catalog.pooling import PoolingChoice
from appliance.checkpoint.facts import ModelFacts
from appliance.layers.draft_spec import KeptStates
from appliance.models.describe import Described, describe
from appliance.models.errors import Problem
from appliance.models.outline import outline
from appliance.models.tensors import tensor_problems
from appliance.plan.overrides import with_config_overrides
from appliance.plan.program import PlannedProgram
from appliance.plan.types import EnginePlan
from appliance.plan.weights import Forms, Group, Weight, planned_forms, read_weights, weight_bytes

T = TypeVar("T")


class Programs:
    """Keeps the programs that are described while one spec is planned.

    Suggestions and advice plan it many times, and most changes of a field leave the program as it is.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Any] = {}
        self._kept: list[object] = []  # whose identity is in the keys

    def describe(
        self,
        model: ModelFacts,
        max_model_len: int,
        pooling: PoolingChoice | None = None,
        keeps: KeptStates | None = None,
        *,
        takes_embeds: bool = False,
    ) -> tuple[Described, tuple[Problem, ...]]:
        """And what is wrong with the checkpoint's tensors. Raises ModelError and CheckpointError."""

        def make() -> tuple[Described, tuple[Problem, ...]]:
            described = describe(model, max_model_len, pooling, keeps, takes_embeds=takes_embeds)
            return described, tuple(tensor_problems(described, model))

        return self._once(("model", max_model_len, pooling, keeps, takes_embeds), (model,), make)

    def outline(self, model: ModelFacts) -> Described:
        return self._once(("outline",), (model,), lambda: outline(model))

    def weights(self, described: Described, model: ModelFacts) -> Mapping[str, Weight]:
        return self._once(("weights",), (described, model), lambda: read_weights(described, model))

    def stored(self, described: Described, model: ModelFacts, forms: Forms, kernels: KernelSetFacts) -> PlannedProgram:
        """The program with its weights in these forms, joined where they agree."""

        def make() -> PlannedProgram:
            joined = described.stored_as(_layouts(described, model, forms)) if described.spec.weights else described
            weights = self.weights(joined, model)
            vectors = joined.compiled.program.vectors()
            sizes = {
                name: weight_bytes(weight, forms, kernels, is_vector=name in vectors)
                for name, weight in weights.items()
            }
            return PlannedProgram(joined, weights, forms, kernels, sizes)

        return self._once(("stored", kernels.name, *forms.items()), (described, model), make)

    def _once(self, key: tuple[object, ...], about: tuple[object, ...], make: Callable[[], T]) -> T:
        whole = (*key, *map(id, about))
        if whole not in self._known:
            self._known[whole] = make()
            self._kept += about
        return cast(T, self._known[whole])


def _layouts(described: Described, model: ModelFacts, forms: Forms) -> dict[str, WeightForm]:
    """The form of each logical weight whose tensor is there."""
    storages = {tensor.name: tensor.storage for tensor in model.tensors}
    roles = described.compiled.roles()
    groups: dict[str, Group] = {
        name: (storages[source.tensor], roles[name])
        for name, source in described.spec.weights.items()
        if source.tensor in storages
    }
    return {name: F32 if group[1] == "other" else forms[group] for name, group in groups.items()}


def program_of(plan: EnginePlan, model: ModelFacts, programs: Programs) -> PlannedProgram | None:
    """The program that a plan runs; None where other code runs it, or nothing in this version."""
    known = model.known
    if plan.model.modelling is not None or known is None or known.family is None:
        return None
    model = with_config_overrides(model, plan.model.config_overrides)
    kept = plan.model.kept_layers
    keeps = None if kept is None else KeptStates(kept)
    described, _ = programs.describe(
        model, plan.model.max_model_len, plan.model.pooling_choice, keeps, takes_embeds=plan.model.takes_embeds
    )
    return programs.stored(described, model, planned_forms(plan.precision), KERNEL_SETS[plan.kernels.kernel_set])
