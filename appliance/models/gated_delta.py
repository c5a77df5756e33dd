"""The gated delta rule of families, from the keys that transformers' configs share under Qwen3-Next's names."""

from collections.abc import Iterable

from msgspec.structs import replace

from appliance.layers.spec import GatedDeltaSpec, NormSpec
from appliance.models.family import Model, Part


def gated_delta_spec(model: Model) -> GatedDeltaSpec:
    """Returns the mixer with the config's sizes."""
    return GatedDeltaSpec(
        num_key_heads=model.count("linear_num_key_heads", 16),
        num_value_heads=model.count("linear_num_value_heads", 32),
        key_dim=model.count("linear_key_head_dim", 128),
        value_dim=model.count("linear_value_head_dim", 128),
        kernel_size=model.count("linear_conv_kernel_dim", 4),
        norm=NormSpec("rms", model.config.norm_eps),
    )


def fused_parts(spec: GatedDeltaSpec, module: str) -> tuple[Part, ...]:
    """Returns the weights of Qwen3-Next: one module has, for each key head, its rows of q and k, and those of v and z
    of its value heads; another has those of beta and of the decay."""
    heads, group = spec.num_key_heads, spec.num_value_heads // max(spec.num_key_heads, 1)
    wide = {"q": spec.key_dim, "k": spec.key_dim, "v": group * spec.value_dim, "z": group * spec.value_dim}
    parts = [*_rows(wide, f"{module}.in_proj_qkvz"), *_rows({"beta": group, "decay": group}, f"{module}.in_proj_ba")]
    return (*(replace(part, num_parts=heads) for part in parts), *_other_parts(spec, module))


def split_parts(spec: GatedDeltaSpec, module: str) -> tuple[Part, ...]:
    """Returns the weights of Qwen3.5: one module has the rows of q, k and v, and each of the others has its own."""
    qkv = _rows({"q": spec.key_width, "k": spec.key_width, "v": spec.value_width}, f"{module}.in_proj_qkv")
    own = [Part(f"delta.{name}", f"{module}.in_proj_{short}") for name, short in _SHORT.items()]
    return (*qkv, *own, *_other_parts(spec, module))


def separate_parts(modules: dict[str, str], module: str, convs: str = "{}_conv1d") -> tuple[Part, ...]:
    """Returns the weights of families in which nothing is fused. modules: those of all projections, and of the norm."""
    return (
        *(Part(f"delta.{name}", f"{module}.{own}") for name, own in modules.items()),
        *(Part(f"delta.conv.{name}", f"{module}.{convs.format(name)}") for name in "qkv"),
        *_vectors(module),
    )


_SHORT = {"z": "z", "beta": "b", "decay": "a"}


def _other_parts(spec: GatedDeltaSpec, module: str) -> Iterable[Part]:
    widths = {"conv.q": spec.key_width, "conv.k": spec.key_width, "conv.v": spec.value_width}
    yield from _rows(widths, f"{module}.conv1d")
    yield Part("delta.norm", f"{module}.norm")
    yield Part("delta.o", f"{module}.out_proj")
    yield from _vectors(module)


def _vectors(module: str) -> list[Part]:
    return [
        Part("delta.a_log", f"{module}.A_log", suffix=""),
        Part("delta.dt_bias", f"{module}.dt_bias", suffix=""),
    ]


def _rows(widths: dict[str, int], module: str) -> list[Part]:
    """Returns the weights that lie one after the other in one module."""
    parts, start = [], 0
    for name, width in widths.items():
        parts.append(Part(f"delta.{name}", module, rows=(start, start + width)))
        start += width
    return parts
