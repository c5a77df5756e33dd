"""Records a terminal session as SVG: runs each command given and draws what it printed.

python docs/tools/record_session.py docs/quickstart.svg "appliance plan SPEC" "appliance status" ...
Commands run through the shell; the first word `appliance` is the one on PATH.
"""

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text


def main(output: Path, commands: list[str]) -> None:
    console = Console(record=True, width=132, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115 - for the run
    for command in commands:
        ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        console.print(Text(ended.stdout.rstrip("\n")), highlight=False)
        console.print()
    output.write_text(console.export_svg(title="appliance"), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
