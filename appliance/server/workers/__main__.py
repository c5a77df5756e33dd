"""`python -m appliance.server.workers`: one API process. Only the keeper starts it."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from appliance.server.workers.worker import Place, run_worker


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="appliance.server.workers", description="One API process of several.")
    for name in ("plan", "store", "page"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    for name in ("listener", "channel", "index", "count"):
        parser.add_argument(f"--{name}", required=True, type=int)
    return run_worker(Place(**vars(parser.parse_args(arguments))))


if __name__ == "__main__":
    sys.exit(main())
