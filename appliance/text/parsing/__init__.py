"""Parses a model's output: reasoning, content and tool calls in one text that comes in pieces."""
