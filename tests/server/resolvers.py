"""A resolver of adapters, as an operator would write one."""

from pathlib import Path


async def find(model: str, name: str) -> str | None:
    """Returns the folder of an adapter that ends with the name of a folder beside the one in FOLDER."""
    place = FOLDER / name.removeprefix("mine/")
    return str(place) if name.startswith("mine/") and place.is_dir() else None


FOLDER = Path("/nowhere")
