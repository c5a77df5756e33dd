"""Sizes, counts and durations as people write them.

Counts follow vLLM's `--max-model-len`: small letters are powers of 1000, capitals powers of 1024, decimals allowed
(32k = 32,000, 32K = 32,768, 25.6k = 25,600). Sizes: MB is 10^6 bytes, MiB is 2^20 bytes.
"""

import re
from decimal import Decimal

COUNT_FORM = "an integer, or a number with k, m, g (powers of 1000) or K, M, G (powers of 1024): 32k, 32K, 25.6k"
SIZE_FORM = "a number of bytes with a unit: 512MB, 4GiB, 1.5GiB"
DURATION_FORM = "a number with a unit: 500ms, 2s, 1m, 1h"

COUNT_PATTERN = r"^\d+(\.\d+)?[kmgKMG]?$"
SIZE_PATTERN = r"^\d+(\.\d+)?\s*(B|[kKMGT]i?B)$"
DURATION_PATTERN = r"^\d+(\.\d+)?(ms|s|m|h|d)$"

_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
_SIZE_UNITS = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE_UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "kiB": 2**10}
_DURATION_UNITS = {"ms": Decimal("0.001"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}

_NUMBER_AND_UNIT = re.compile(r"^(\d+(?:\.\d+)?)\s*([A-Za-z]*)$")


def parse_count(text: str) -> int:
    """Raises ValueError when the text is no count or not a whole number."""
    number, unit = _split(text, COUNT_FORM)
    if unit not in _COUNT_UNITS:
        raise ValueError(f"{text!r} has an unknown suffix {unit!r}")
    return _whole(number * _COUNT_UNITS[unit], text)


def parse_size(text: str) -> int:
    """Bytes. Raises ValueError when the text is no size, has no unit, or is no whole number of bytes."""
    number, unit = _split(text, SIZE_FORM)
    if unit not in _SIZE_UNITS:
        raise ValueError(f"{text!r} has no unit" if not unit else f"{text!r} has an unknown unit {unit!r}")
    return _whole(number * _SIZE_UNITS[unit], text)


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError when the text is no duration or has no unit."""
    number, unit = _split(text, DURATION_FORM)
    if unit not in _DURATION_UNITS:
        raise ValueError(f"{text!r} has no unit" if not unit else f"{text!r} has an unknown unit {unit!r}")
    return float(number * _DURATION_UNITS[unit])


def size_text(size_bytes: int) -> str:
    """The shortest exact text that `parse_size` reads back: 4GiB, 64KiB, 1000B."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit]}{unit}"
    return f"{size_bytes}B"


def duration_text(seconds: float) -> str:
    """The shortest exact text that `parse_duration` reads back: 10m, 1.5s, 500ms."""
    exact = Decimal(str(seconds)).normalize()
    for unit in ("d", "h", "m", "s"):
        if exact and exact % _DURATION_UNITS[unit] == 0:
            return f"{exact // _DURATION_UNITS[unit]:f}{unit}"
    return f"{exact:f}s" if exact >= 1 or not exact else f"{(exact * 1000).normalize():f}ms"


def format_size(size_bytes: int) -> str:
    """In binary units with three significant digits: `1.50 GiB`. For people, not for parsing."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024:
            break
        value, unit = value / 1024, larger
    if unit == "B":
        return f"{size_bytes} B"
    digits = 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    return f"{value:.{digits}f} {unit}"


def format_duration(seconds: float) -> str:
    """`350 ms`, `2.5 s`, `4 min 05 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def _split(text: str, form: str) -> tuple[Decimal, str]:
    matched = _NUMBER_AND_UNIT.match(text.strip())
    if matched is None or len(text) > 40:
        raise ValueError(f"{text[:60]!r} is not {form}")
    return Decimal(matched[1]), matched[2]


def _whole(number: Decimal, text: str) -> int:
    if number != number.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number ({number.normalize():f})")
    return int(number)
