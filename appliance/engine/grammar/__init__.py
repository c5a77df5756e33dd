"""Structured output: constraints become grammars, and grammars become masks over the vocabulary."""
