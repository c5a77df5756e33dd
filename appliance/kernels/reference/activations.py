"""The activation functions on torch tensors."""

import torch
from torch.nn import functional

from appliance.program.record import ActivationKind


def activate(x: torch.Tensor, kind: ActivationKind) -> torch.Tensor:
    match kind:
        case "silu":
            return functional.silu(x)
        case "gelu":
            return functional.gelu(x)
        case "gelu_tanh":
            return functional.gelu(x, approximate="tanh")
        case "relu":
            return functional.relu(x)
        case "relu2":
            return functional.relu(x).square()
        case "sigmoid":
            return torch.sigmoid(x)


def xielu(x: torch.Tensor, parameters: torch.Tensor) -> torch.Tensor:
    """parameters: [4], as in program.operators.Activation."""
    alpha_p, alpha_n, beta, eps = parameters.flatten()
    above = functional.softplus(alpha_p) * x * x
    below = (beta + functional.softplus(alpha_n)) * (torch.expm1(torch.minimum(x, eps)) - x)
    result: torch.Tensor = torch.where(x > 0, above, below) + beta * x
    return result
