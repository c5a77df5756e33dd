"""A headless browser, where there is one."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def open_page(url: str, **options: Any) -> Iterator[Any]:
    """A page of a fresh browser; the test is skipped, with the reason, where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra: dev)")
    program = next((found for name in _PROGRAMS if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("there is no chromium on this machine (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(**options)
        page.set_default_timeout(15_000)
        page.goto(url)
        yield page
        browser.close()
