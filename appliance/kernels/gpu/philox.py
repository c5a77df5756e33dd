"""The random numbers of sampling: Philox4x32-10 (Salmon et al. 2011), for all rows of a batch at once."""

import numpy as np
import numpy.typing as npt

_MASK = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_INCREMENTS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_ROUNDS = 10


def uniforms(seed: npt.NDArray[np.uint64], position: npt.NDArray[np.uint64]) -> npt.NDArray[np.float64]:
    """Returns a number in [0, 1) for each row, f64 [R], from the first two words: key = seed, counter = position."""
    low, high = seed & _MASK, seed >> _HALF
    words = [position & _MASK, position >> _HALF, np.zeros_like(seed), np.zeros_like(seed)]
    for _ in range(_ROUNDS):
        first, second = _MULTIPLIERS[0] * words[0], _MULTIPLIERS[1] * words[2]
        words = [
            (second >> _HALF) ^ words[1] ^ low,
            second & _MASK,
            (first >> _HALF) ^ words[3] ^ high,
            first & _MASK,
        ]
        low, high = (low + _INCREMENTS[0]) & _MASK, (high + _INCREMENTS[1]) & _MASK
    bits = (words[0] << np.uint64(21)) | (words[1] >> np.uint64(11))
    return bits.astype(np.float64) * 2.0**-53
