"""The sizes of packed weights, which mirror kernels/cpu/weight.cpp, and of weights on a device."""

from appliance.catalog.formats import WeightForm

_BF16_COLUMNS = 2  # vdpbf16ps takes pairs
_QUANTIZED_COLUMNS = 8  # a word of every lane holds four int8 or eight int4; groups of int5 and int6 are whole


def packed_bytes(form: WeightForm, rows: int, columns: int, panel: int) -> int:
    """Returns the bytes of a packed matrix.

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


def device_bytes(form: WeightForm, rows: int, columns: int) -> int:
    """Returns the bytes of a matrix in a set on torch: codes take 4 or 8 bits, and nothing is padded."""
    bits = form.element_bits
    if not form.is_quantized:
        return rows * columns * bits // 8
    group = form.group_size or columns
    factors = 0 if form.sub_group_size is None else group // form.sub_group_size
    header = (form.scale_bytes + factors) * (2 if form.has_offset else 1)
    return rows * (columns * (4 if bits == 4 else 8) // 8 + -(-columns // group) * header)


def _column_unit(form: WeightForm) -> int:
    if form.is_quantized:
        return _QUANTIZED_COLUMNS
    return _BF16_COLUMNS if form.layout == "bf16" else 1


def _padded(value: int, unit: int) -> int:
    return -(-value // unit) * unit
