"""The state space mixers of families, from the keys that transformers' configs share under Bamba's names."""

import math

from appliance.checkpoint.errors import CheckpointError
from appliance.layers.norm_spec import NormSpec
from appliance.layers.recurrent_spec import StateSpaceSpec
from appliance.models.dense import Recurrent
from appliance.models.family import Model, Part


def mamba(model: Model, module: str, norm: NormSpec | None = None) -> Recurrent:
    """Returns the mixer of Mamba 1 in the checkpoint's module. norm: of the time step, b and c."""
    width = model.count("mamba_expand", 2) * model.config.hidden_size
    biased = model.flag("mamba_proj_bias", default=False)
    spec = StateSpaceSpec(
        num_heads=width,
        head_dim=1,
        state_size=model.count("mamba_d_state", 16),
        kernel_size=model.count("mamba_d_conv", 4),
        conv_bias=model.flag("mamba_conv_bias", default=True),
        in_bias=biased,
        out_bias=biased,
        time_step_rank=auto_count(model, "mamba_dt_rank", math.ceil(model.config.hidden_size / 16)),
        selection_norm=norm,
    )
    sizes = {"dt.low": spec.time_step_rank or 0, "b": spec.state_size, "c": spec.state_size}
    parts = [
        *_rows({"x": width, "z": width}, f"{module}.in_proj", biased),
        *_rows(sizes, f"{module}.x_proj", False),
        Part("ssm.dt", f"{module}.dt_proj"),
        Part("ssm.dt_bias", f"{module}.dt_proj", suffix=".bias"),
        *_shared_parts(model, spec, module),
    ]
    if norm is not None and norm.weight:
        parts += [Part(f"ssm.{part}_norm", f"{module}.{part}_layernorm") for part in ("dt", "b", "c")]
    return Recurrent(spec, tuple(parts))


def mamba2(model: Model, module: str, spec: StateSpaceSpec) -> tuple[Part, ...]:
    """Returns the weights of a mixer of Mamba 2 in the checkpoint's module."""
    selected = spec.num_groups * spec.state_size
    widths = {"z": spec.width, "x": spec.width, "b": selected, "c": selected, "dt": spec.num_heads}
    return (
        *_rows(widths, f"{module}.in_proj", spec.in_bias),
        Part("ssm.dt_bias", f"{module}.dt_bias", suffix=""),
        *_shared_parts(model, spec, module),
        *((Part("ssm.norm", f"{module}.norm"),) if spec.norm is not None else ()),
    )


def mamba2_spec(model: Model, norm: NormSpec | None, width: int | None = None) -> StateSpaceSpec:
    """Returns a mixer of Mamba 2. width: of x; None for a multiple of the hidden size that the config states.

    Raises CheckpointError for limits of the time step that are no two numbers.
    """
    heads = model.count("mamba_n_heads", 128)
    width = model.count("mamba_expand", 2) * model.config.hidden_size if width is None else width
    low, high = _limits(model)
    biased = model.flag("mamba_proj_bias", default=False)
    return StateSpaceSpec(
        num_heads=heads,
        head_dim=auto_count(model, "mamba_d_head", width // max(heads, 1)),
        state_size=model.count("mamba_d_state", 256),
        kernel_size=model.count("mamba_d_conv", 4),
        num_groups=model.count("mamba_n_groups", 1),
        activation=model.activation("mamba_hidden_act", "silu"),
        conv_bias=model.flag("mamba_conv_bias", default=True),
        in_bias=biased,
        out_bias=biased,
        norm=norm,
        dt_min=low,
        dt_max=high,
    )


def auto_count(model: Model, key: str, default: int) -> int:
    """Returns a count of the config, or the default where it says "auto"."""
    return default if model.fields.get(key) == "auto" else model.count(key, default)


def _limits(model: Model) -> tuple[float, float]:
    """Returns the least and the largest time step. Transformers writes an infinite one as {"__float__": "Infinity"}."""
    stated = model.fields.get("time_step_limit")
    if stated is None:
        return 0.0, math.inf
    values = [_number(value) for value in stated] if isinstance(stated, list | tuple) else []
    if len(values) != 2 or None in values:
        raise CheckpointError("config.json", f"time_step_limit is {stated!r}; two numbers are expected")
    low, high = (value for value in values if value is not None)
    return low, high


def _number(value: object) -> float | None:
    if value == {"__float__": "Infinity"} or value == "Infinity":
        return math.inf
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _rows(widths: dict[str, int], module: str, bias: bool) -> list[Part]:
    """Returns the weights that lie one after the other in one module."""
    parts, start = [], 0
    for name, width in widths.items():
        parts.append(Part(f"ssm.{name}", module, bias, rows=(start, start + width)))
        start += width
    return parts


def _shared_parts(model: Model, spec: StateSpaceSpec, module: str) -> list[Part]:
    """Returns the weights that both kinds have under one name."""
    return [
        Part("ssm.conv", f"{module}.conv1d", spec.conv_bias),
        Part("ssm.a_log", f"{module}.A_log", suffix="", transform=model.a_log),
        Part("ssm.d", f"{module}.D", suffix=""),
        Part("ssm.o", f"{module}.out_proj", spec.out_bias),
    ]
