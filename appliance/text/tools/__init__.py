"""Parsers of tool calls in a model's output: one file for each format; appliance/catalog/parsers.py lists them."""
