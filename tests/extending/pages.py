"""The code of the pages that show how to add a part."""

import re
from pathlib import Path

EXTENDING = Path(__file__).parents[2] / "docs" / "extending"


def block(page: str, name: str) -> str:
    """The code block of a page whose first line is a comment with this name."""
    text = (EXTENDING / page).read_text()
    (found,) = re.findall(rf"```\w+\n# {re.escape(name)}\n(.*?)```", text, re.DOTALL)
    return str(found)
