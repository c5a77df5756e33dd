"""The server that is called; the runner says where."""

import json
import os
import urllib.request

ROOT = os.environ["APPLIANCE_URL"].rstrip("/")
BASE = f"{ROOT}/v1"
KEY = os.environ.get("APPLIANCE_KEY", "none")
ONE_AT_A_TIME = os.environ.get("APPLIANCE_KEY_ONE_AT_A_TIME", "")  # a key; without it the server has none


def _first_name() -> str:
    request = urllib.request.Request(f"{BASE}/models", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request) as answer:
        name: str = json.load(answer)["data"][0]["id"]
    return name


MODEL = _first_name()
