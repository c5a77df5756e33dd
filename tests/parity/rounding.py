"""The effect of bf16 dot products on a model: they also round the inputs of its matrices to 8 bits."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from appliance.kernels.interface import KernelSet

ROUNDING_SETS = ("cpu-avx512_bf16", "cpu-amx")  # whose products of bf16 weights are of bf16 inputs


def assert_logits_close(
    found: np.ndarray, oracle: torch.nn.Module, prompt: list[int], tolerance: dict[str, float], rounds: bool
) -> None:
    """`found` are the oracle's logits; where `rounds`, those of matrices that round their inputs.

    They are then nearer to these than exact ones are (1.0), or ones with as much noise (1.4). Inputs a hair apart may
    be rounded to different sides, which later layers amplify: 0.03 to 0.6 was seen.
    """
    exact = oracle_logits(oracle, prompt)
    if not rounds:
        np.testing.assert_allclose(found, exact, **tolerance)
        return
    with rounded_inputs(oracle):
        rounded = oracle_logits(oracle, prompt)
    assert deviation(found, rounded) < 0.8 * deviation(exact, rounded)


def rounds_inputs(kernel_set: KernelSet) -> bool:
    return kernel_set.name in ROUNDING_SETS


def oracle_logits(oracle: torch.nn.Module, prompt: list[int]) -> np.ndarray:
    with torch.inference_mode():
        result: np.ndarray = oracle(torch.tensor([prompt])).logits[0].numpy()
    return result


def deviation(found: np.ndarray, exact: np.ndarray) -> float:
    """Root mean square of the difference, as a part of the spread of the logits."""
    return float(np.sqrt(np.square(found - exact).mean()) / exact.std())


@contextmanager
def rounded_inputs(model: torch.nn.Module) -> Iterator[None]:
    def rounded(_: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return (inputs[0].bfloat16().float(), *inputs[1:])

    linears = (module for module in model.modules() if isinstance(module, torch.nn.Linear))
    handles = [module.register_forward_pre_hook(rounded) for module in linears]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
