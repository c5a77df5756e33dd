"""Failures of a device: what it was, in one sentence. After one, an executable can run nothing, and its engine ends."""

import functools
import re
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from appliance.kernels.errors import ExecutableError

Params = ParamSpec("Params")
Result = TypeVar("Result")

_WANTED = re.compile(r"[Tt]ried to allocate ([\d.]+ ?\w+)")


def says_failures(call: Callable[Params, Result]) -> Callable[Params, Result]:
    """Turns errors of torch and of kernels into ExecutableError: no memory, an illegal access, a lost device."""

    @functools.wraps(call)
    def checked(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except RuntimeError as error:
            raise _failure(error) from error

    return checked


def _failure(error: RuntimeError) -> ExecutableError:
    if isinstance(error, torch.OutOfMemoryError):
        wanted = _WANTED.search(str(error))
        size = f" of {wanted[1]}" if wanted else ""
        hint = "lower hardware.memory.utilization, or end what else uses the device"
        return ExecutableError(f"the device had no memory left for a part of a step{size}", hint=hint)
    reason = str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
    return ExecutableError(f"the device failed: {reason}", hint="appliance doctor shows the devices")
