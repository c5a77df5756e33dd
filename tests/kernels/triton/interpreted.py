"""What Triton's interpreter does of its own, and no device."""

import numpy as np


def numpy_rounds_alike() -> bool:
    """The interpreter multiplies by NumPy's library, which rounds a row by its place on some processors."""
    rng = np.random.default_rng(0)
    left, right = rng.standard_normal((64, 64), np.float32), rng.standard_normal((64, 64), np.float32)
    return np.array_equal(left[23:55] @ right, (left @ right)[23:55])
