"""What holds for all tests. tests/clients runs in an environment of its own: `make clients`.

An unexpected skip hides a loss. Where CI or APPLIANCE_TEST_STRICT is set, a skip whose reason is not one of
KNOWN_SKIPS is a failure.
"""

import os
import re
from collections.abc import Generator

import pytest

from tests.cases import MOST, leave_out
from tests.native import use_named_folder

collect_ignore = ["clients"]

# What a machine may lack. Each test that is skipped for one of these names what to install or to set.
KNOWN_SKIPS = (
    r"(bash|helm|node|promtool|Prometheus|systemd-analyze) is not here",
    r"\S+ is not installed: npm install --prefix tests/editor",
    r"playwright is not installed",
    r"there is no chromium on this machine",
    r"APPLIANCE_TEST_MODELS (is not set|does not name a folder of real models)",
    r"\S+ is not in the folder",
    r"the system lets no process choose its memory's node",
    r"kernel set cpu-\w+ needs processor flags that are not here",
    r"needs objdump and the build of \w+",
    r"this processor has the instructions that emulated stands for",
    r"this system cannot make memory resident ahead of its use",
    r"the set computes in floats",
    r"NumPy rounds a row by its place on this processor",
    r"not a git checkout",
    r"(ray|triton|mistral_common|sentencepiece|tensorizer|pynacl) is not installed",
)
_KNOWN = re.compile("|".join(f"(?:{each})" for each in KNOWN_SKIPS))


def pytest_configure() -> None:
    use_named_folder()
    os.environ.setdefault("TRITON_INTERPRET", "1")  # triton reads it when it is imported; compiling tests unset it


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if MOST:
        leave_out(config, items, int(MOST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turns a skip that is not on the list into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and _is_strict() and not _KNOWN.search(_reason(report)):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, which is not on the list of known skips: {_reason(report)}"
    return report


def _is_strict() -> bool:
    return bool(os.environ.get("APPLIANCE_TEST_STRICT") or os.environ.get("CI"))


def _reason(report: pytest.TestReport) -> str:
    return str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
