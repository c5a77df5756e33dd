"""Batch files: OpenAI requests in, one a line, answers out, each line exactly once over all runs."""
