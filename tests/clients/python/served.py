"""The server that is called; the runner says where."""

import json
import os
import urllib.request

ROOT = os.environ["APPLIANCE_URL"].rstrip("/")
BASE = f"{ROOT}/v1"
KEY = "none"


def _first_name() -> str:
    with urllib.request.urlopen(f"{BASE}/models") as answer:
        name: str = json.load(answer)["data"][0]["id"]
    return name


MODEL = _first_name()
