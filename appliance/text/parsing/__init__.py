"""Reads what a model wrote: reasoning, content and tool calls out of one text that comes in pieces."""
