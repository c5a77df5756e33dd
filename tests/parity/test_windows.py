"""A model without its windows gives the same bits while no token has left one."""

from collections.abc import Callable

import numpy as np
import pytest

from appliance.checkpoint.facts import ModelFacts
from appliance.kernels.binding import load_kernel_set
from appliance.models.describe import describe
from appliance.models.windows import DISABLE_WINDOWS
from appliance.plan.overrides import with_config_overrides
from tests.parity.conftest import Checkpoint
from tests.parity.harness import Driver, bind, execution_of

WINDOW = 8
# Windows in each layer or in some; with sinks; where windows alone rotate; of other numbers of heads.
NAMES = ["mistral", "gemma2", "gpt-oss", "exaone4", "mimo2", "gemma4"]


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_with_windows(name: str, tiny: Callable[[str], Checkpoint]) -> None:
    facts = tiny(name).facts
    whole = with_config_overrides(facts, {DISABLE_WINDOWS: True})
    windows = [describe(each, WINDOW).compiled.program.kv_layout().windows for each in (facts, whole)]
    assert any(window is not None for window in windows[0])
    assert windows[1] == (None,)
    with_windows, without = logits(facts), logits(whole)
    assert (with_windows == without).all()


def logits(facts: ModelFacts) -> np.ndarray:
    """The logits of a prompt's last token, and of each token after it up to the window."""
    bounds = execution_of()
    driver = Driver(bind(facts, load_kernel_set("cpu-generic"), execution=bounds), bounds)
    sequence = driver.sequence([5, 9, 17, 33, 64, 65, 66, 67])
    return np.stack([driver.step([(sequence, length)])[0].copy() for length in (4, 1, 1, 1, 1)])
