"""Stacks for threads in which a native library recurses over what a client sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

STACK_BYTES = 16 << 20  # of address space; four times what the trial of a constraint may use
_lock = threading.Lock()


@contextmanager
def deep_stacks() -> Iterator[None]:
    """Threads that are started meanwhile have STACK_BYTES of stack: where no limit is set, the system gives 2 MiB."""
    with _lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            yield
        finally:
            threading.stack_size(before)
