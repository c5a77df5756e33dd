"""The gated delta rule of families, from the keys that transformers' configs share under Qwen3-Next's names."""

from collections.abc import Iterable

from msgspec.structs import replace

from appliance.layers.norm_spec import NormSpec
from appliance.layers.recurrent_spec import GatedDeltaSpec
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
        tiled=model.facts.stored.tiled_value_heads,
    )


def fused_parts(model: Model, spec: GatedDeltaSpec, module: str) -> tuple[Part, ...]:
    """Returns the weights of Qwen3-Next: one module has, for each key head, its rows of q and k, and those of v and z
    of its value heads; another has those of beta and of the decay. GGUF files have q, k and v one after the other, and
    z apart."""
    heads, group = spec.num_key_heads, spec.num_value_heads // max(spec.num_key_heads, 1)
    wide = {"q": spec.key_dim, "k": spec.key_dim, "v": group * spec.value_dim, "z": group * spec.value_dim}
    by_head = [] if model.facts.format == "gguf" else _rows(wide, f"{module}.in_proj_qkvz")
    by_head += _rows({"beta": group, "decay": group}, f"{module}.in_proj_ba")
    whole = () if model.facts.format != "gguf" else (*_qkv(spec, module), Part("delta.z", f"{module}.in_proj_z"))
    return (*(replace(part, num_parts=heads) for part in by_head), *whole, *_other_parts(model, spec, module))


def split_parts(model: Model, spec: GatedDeltaSpec, module: str) -> tuple[Part, ...]:
    """Returns the weights of Qwen3.5: one module has the rows of q, k and v, and each of the others has its own."""
    own = [Part(f"delta.{name}", f"{module}.in_proj_{short}") for name, short in _SHORT.items()]
    return (*_qkv(spec, module), *own, *_other_parts(model, spec, module))


def separate_parts(model: Model, modules: dict[str, str], module: str, convs: str = "{}_conv1d") -> tuple[Part, ...]:
    """Returns the weights of families in which nothing is fused. modules: those of all projections, and of the norm."""
    return (
        *(Part(f"delta.{name}", f"{module}.{own}") for name, own in modules.items()),
        *(Part(f"delta.conv.{name}", f"{module}.{convs.format(name)}") for name in "qkv"),
        *_vectors(model, None, module),
    )


_SHORT = {"z": "z", "beta": "b", "decay": "a"}


def _qkv(spec: GatedDeltaSpec, module: str) -> list[Part]:
    return _rows({"q": spec.key_width, "k": spec.key_width, "v": spec.value_width}, f"{module}.in_proj_qkv")


def _other_parts(model: Model, spec: GatedDeltaSpec, module: str) -> Iterable[Part]:
    widths = {"conv.q": spec.key_width, "conv.k": spec.key_width, "conv.v": spec.value_width}
    yield from _rows(widths, f"{module}.conv1d")
    yield Part("delta.norm", f"{module}.norm")
    yield Part("delta.o", f"{module}.out_proj")
    yield from _vectors(model, spec, module)


def _vectors(model: Model, spec: GatedDeltaSpec | None, module: str) -> list[Part]:
    whole = [
        Part("delta.a_log", f"{module}.A_log", suffix="", transform=model.a_log),
        Part("delta.dt_bias", f"{module}.dt_bias", suffix=""),
    ]
    if spec is None or not spec.tiled:
        return whole
    heads = spec.num_key_heads
    return [
        replace(part, name=f"{part.name}.{tile}", rows=(tile * heads, (tile + 1) * heads))
        for part in whole
        for tile in range(spec.num_tiles)
    ]


def _rows(widths: dict[str, int], module: str) -> list[Part]:
    """Returns the weights that lie one after the other in one module."""
    parts, start = [], 0
    for name, width in widths.items():
        parts.append(Part(f"delta.{name}", module, rows=(start, start + width)))
        start += width
    return parts
