"""Larger stacks for threads in which a native library recurses over client data."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

STACK_BYTES = 16 << 20  # of address space; four times the stack that a trial may use
_lock = threading.Lock()


@contextmanager
def deep_stacks() -> Iterator[None]:
    """Gives STACK_BYTES of stack to threads started within the context; without a ulimit the default is 2 MiB."""
    with _lock:
        before = threading.stack_size(STACK_BYTES)
        try:
            yield
        finally:
            threading.stack_size(before)
