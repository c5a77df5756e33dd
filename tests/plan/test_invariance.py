"""Whether rows round alike in every batch, what that costs, and where it cannot be."""

import pytest

from appliance.base.errors import SpecError
from appliance.plan.render import render_text
from tests.plan.checkpoints import from_config
from tests.plan.machines import MODEL, decision, load, machine, plan, small_model

H100, WISH = "nvidia-h100-sxm-80g", "hardware.kernels.batch_invariant=true"


@pytest.mark.parametrize("wish", [(), (WISH,), ("hardware.kernels.batch_invariant=false",)])
def test_a_cpu_set_always_is_at_no_cost(wish: tuple[str, ...]) -> None:
    found = plan(load(MODEL, *wish))
    assert found.kernels.batch_invariant
    said = decision(found, "kernels.batch_invariant")
    assert "no cost" in said.reason
    assert ("false changes nothing" in said.reason) == (wish == ("hardware.kernels.batch_invariant=false",))
    assert found.engine_sha256 == plan(load()).engine_sha256


def test_a_gpu_is_where_that_is_asked_for() -> None:
    plain, asked = (plan(load(MODEL, *wish), from_config("llama-3.1-8b"), machine(H100)) for wish in ((), (WISH,)))
    assert (plain.kernels.batch_invariant, asked.kernels.batch_invariant) == (False, True)
    assert "near ties" in decision(plain, "kernels.batch_invariant").reason
    assert "slower" in decision(asked, "kernels.batch_invariant").reason
    told = [render_text(each).splitlines()[2] for each in (plain, asked)]
    assert ["rows round alike" in each for each in told] == [False, True]
    sizes = [{item.name: item.size_bytes for item in each.memory[0].items} for each in (plain, asked)]
    assert sizes[0]["workspace"] < sizes[1]["workspace"], "products of all tokens leave shares"
    assert plain.engine_sha256 != asked.engine_sha256


def test_a_set_without_the_choice_refuses_it() -> None:
    with pytest.raises(SpecError, match="round by how many rows"):
        plan(load(MODEL, WISH, "hardware.kernels.kernel_set=reference"), small_model())


def test_states_that_torch_carries_on_a_cpu_refuse_it() -> None:
    model = from_config("qwen3.5-35b-a3b")
    with pytest.raises(SpecError) as caught:
        plan(load(MODEL, WISH, "hardware.kernels.kernel_set=torch"), model)
    assert "recurrent states of torch" in " ".join(each.message for each in caught.value.diagnostics)
