"""tests/clients runs in an environment of its own: `make clients`."""

collect_ignore = ["clients"]
