"""What weights take once a kernel set has packed them. Mirrors kernels/cpu/weight.cpp and layers/program.py."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from appliance.catalog.formats import WeightForm

_BF16_COLUMNS = 2  # vdpbf16ps takes pairs
_QUANTIZED_COLUMNS = 8  # a word of every lane holds four int8 or eight int4; groups of int5 and int6 are whole

# Modules of one layer whose matrices become one Linear where they have one form, in the order of their rows.
_JOINED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
_PLACES = {module: (names, at) for names in _JOINED for at, module in enumerate(names)}


@dataclass(frozen=True, slots=True)
class Matrix:
    """A weight of the checkpoint: `name` as Hugging Face names it, shape (..., out_features, in_features)."""

    name: str
    shape: tuple[int, ...]


def packed_bytes(form: WeightForm, rows: int, columns: int, panel: int) -> int:
    """Bytes of a packed matrix.

    Rows are padded to whole panels; with a panel of 1 nothing is padded. Columns are padded to 2 (bf16) or to 8
    (integers), a group that spans the row with them.
    """
    width = _padded(columns, _column_unit(form)) if panel > 1 else columns
    size = _padded(rows, panel) * width * form.element_bits // 8
    if not form.is_quantized:
        return size
    group = width if form.group_size in (None, columns) else form.group_size
    factors = 0 if form.sub_group_size is None else group // form.sub_group_size
    header = (form.scale_bytes + factors) * (2 if form.has_offset else 1)
    return size + _padded(rows, panel) * -(-width // group) * header


def packed_total(form: WeightForm, matrices: Iterable[Matrix], panel: int) -> int:
    """Bytes of weights of one form, those that become one Linear padded together. A vector is not packed."""
    return sum(packed_bytes(form, rows, columns, panel) for rows, columns in _joined(matrices))


def _joined(matrices: Iterable[Matrix]) -> Iterator[tuple[int, int]]:
    """(rows, columns) of what is packed as one. Parts that are not neighbours among the joined modules stay apart."""
    waiting: dict[tuple[str, tuple[str, ...]], list[tuple[int, int, int]]] = {}
    for matrix in matrices:
        *outer, rows, columns = matrix.shape
        layer, _, module = matrix.name.removesuffix(".weight").rpartition(".")
        if module in _PLACES and not outer:
            names, at = _PLACES[module]
            waiting.setdefault((layer, names), []).append((at, rows, columns))
        else:
            yield from [(rows, columns)] * prod(outer)
    for parts in waiting.values():
        run_rows, last = 0, -1
        for at, rows, columns in sorted(parts):
            if run_rows and at != last + 1:
                yield run_rows, columns
                run_rows = 0
            run_rows, last = run_rows + rows, at
        yield run_rows, parts[0][2]


def _column_unit(form: WeightForm) -> int:
    if form.is_quantized:
        return _QUANTIZED_COLUMNS
    return _BF16_COLUMNS if form.layout == "bf16" else 1


def _padded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
