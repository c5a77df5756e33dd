"""`python -m tests.plan.update_golden` writes the golden plans anew; `--headers NAME FILE` keeps a GGUF header."""

import sys
from pathlib import Path

from .checkpoints import DATA, write_header
from .golden import MODELS, golden_text
from .golden_gpus import gpus_text


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--headers"]:
        write_header(arguments[1], Path(arguments[2]))
        return
    for name, make in MODELS.items():
        (DATA / "plans" / f"{name}.txt").write_text(golden_text(name, make))
    (DATA / "plans" / "gpus.txt").write_text(gpus_text())


if __name__ == "__main__":
    main(sys.argv[1:])
