"""How the weights of a rank lie in its files: of each the arrays, their types and shapes, by its planned form."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from appliance.checkpoint.facts import Storage
from appliance.checkpoint.storage import stored_bytes
from appliance.kernels.layout import PAIRED_LAYOUTS, Layout
from appliance.loading.sharded_weights import ShardedWeights
from appliance.loading.weights import DecoderWeights

Planned = DecoderWeights | ShardedWeights  # the weights of a rank, made of the checkpoint
_DATA: Final[dict[str, Storage]] = {"f32": "f32", "f16": "f16", "bf16": "bf16", "int8": "i8"}  # of other layouts u8
_SCALES: Final[dict[int, Storage]] = {1: "u8", 2: "f16", 4: "f32"}  # by the bytes of one


class StoredWeight(NamedTuple):
    """A canonical weight without its arrays."""

    layout: Layout
    rows: int
    columns: int
    group_size: int | None
    sub_group_size: int | None


class StoredArray(NamedTuple):
    """An array of a weight. name: of the field of CanonicalWeight. tensor: its name in the file."""

    name: str
    tensor: str
    storage: Storage
    shape: tuple[int, int]

    @property
    def size_bytes(self) -> int:
        return stored_bytes(self.storage, self.shape)


def stored_names(planned: Planned) -> list[str]:
    """Returns the names of the weights that are written, in order: all but computed tables."""
    computed = planned.computed
    return [name for name in planned if name not in computed]


def stored_weight(planned: Planned, name: str) -> StoredWeight:
    """Returns the form of a weight, which its plan decides: nothing of it stands in the files."""
    form, (rows, columns) = planned.form(name), planned.full_shape(name)
    group = columns if form.is_quantized and form.group_size is None else form.group_size
    return StoredWeight(Layout(form.layout), rows, columns, group, form.sub_group_size)


def stored_arrays(planned: Planned, name: str) -> Iterator[StoredArray]:
    """Yields the arrays of a weight, in the order in which they lie in the file."""
    form, weight = planned.form(name), stored_weight(planned, name)
    width = weight.columns // 2 if form.layout in PAIRED_LAYOUTS else weight.columns

    def array(field: str, storage: Storage, columns: int) -> StoredArray:
        return StoredArray(field, f"{name}.{field}", storage, (weight.rows, columns))

    yield array("data", _DATA.get(form.layout, "u8"), width)
    if weight.group_size is None:
        return
    fields = ("scale", "offset") if form.has_offset else ("scale",)
    for field in fields:
        yield array(field, _SCALES[form.scale_bytes], weight.columns // weight.group_size)
    if weight.sub_group_size is not None:
        for field in fields:
            yield array(f"sub_{field}", "i8", weight.columns // weight.sub_group_size)
