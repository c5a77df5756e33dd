"""Adapters that requests bring: routes that load and unload them, and where unknown ones are looked for."""
