"""What the metadata of GGUF architectures with recurrent layers means beyond the common keys."""

from collections.abc import Callable
from typing import Any, Final

from appliance.checkpoint.errors import CheckpointError
from appliance.checkpoint.gguf_architectures import FALCON_MAMBA, named

Json = dict[str, Any]
Change = Callable[[Json, Json], None]  # of a config, by the metadata without the prefix

_SIGMOID: Final = 2  # llama.cpp's number of the gating function


def check_sigmoid(values: Json) -> None:
    """Raises CheckpointError if the file's experts are not chosen by sigmoids."""
    if values.get("expert_gating_func", _SIGMOID) != _SIGMOID:
        raise CheckpointError("GGUF", f"expert_gating_func is {values['expert_gating_func']}; {_SIGMOID} is expected")


def _lfm2(config: Json, values: Json) -> None:
    """A file has the width of the feed-forward as it is."""
    count = config.get("num_hidden_layers", 0)
    attends = values.get("attends") or [True] * count
    config["layer_types"] = ["full_attention" if has_heads else "conv" for has_heads in attends]
    config["block_auto_adjust_ff_dim"] = False
    if "shortconv.l_cache" in values:
        config["conv_L_cache"] = values["shortconv.l_cache"]


def _lfm2moe(config: Json, values: Json) -> None:
    _lfm2(config, values)
    config["num_dense_layers"] = config.pop("first_k_dense_replace", 0)
    config["norm_topk_prob"] = True
    check_sigmoid(values)


def _mamba(config: Json, values: Json) -> None:
    """A file whose time step, b and c are normed is of Falcon Mamba. Files state no heads and no feed-forward."""
    if values.get("ssm.dt_b_c_rms"):
        config |= named(FALCON_MAMBA)
    names = {"conv_kernel": "conv_kernel", "state_size": "state_size", "time_step_rank": "time_step_rank"}
    config |= {name: values[f"ssm.{key}"] for key, name in names.items() if f"ssm.{key}" in values}
    width, hidden = values.get("ssm.inner_size", 0), config.get("hidden_size", 0)
    if not hidden or width % hidden:
        raise CheckpointError("GGUF", f"ssm.inner_size is {width}; a multiple of {hidden} is expected")
    config |= {"expand": width // hidden, "intermediate_size": width}


HYBRID_CHANGES: Final[dict[str, Change]] = {
    "lfm2": _lfm2,
    "lfm2moe": _lfm2moe,
    "mamba": _mamba,
}
