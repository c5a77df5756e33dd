"""Small reads below a file-system root, so that a probe can be tested on a made-up machine."""

from pathlib import Path


def read_text(path: Path) -> str | None:
    """The stripped text; None when it cannot be read (the kernel hides many files from containers)."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """The number in a file; None when there is none."""
    text = read_text(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """`0-3,8` as (0, 1, 2, 3, 8)."""
    numbers: list[int] = []
    for piece in filter(None, text.strip().split(",")):
        first, _, last = piece.partition("-")
        numbers += range(int(first), int(last or first) + 1)
    return tuple(numbers)
