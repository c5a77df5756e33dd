"""Reasoning out of what a model wrote: one file a format; appliance/catalog/parsers.py lists them."""
