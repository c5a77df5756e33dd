"""The arrays of a step as a message, for ranks without common memory: each has them for itself."""

from appliance.engine.ranks.messages import Array, RunArrays
from appliance.engine.ranks.step_memory import arrays_of, inputs_of
from appliance.kernels.interface import StepInputs


def message_of(number: int, inputs: StepInputs) -> RunArrays:
    return RunArrays(number, {name: Array.of(array) for name, array in arrays_of(inputs)})


def step_of(message: RunArrays) -> StepInputs:
    return inputs_of({name: array.array() for name, array in message.arrays.items()})
