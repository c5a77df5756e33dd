"""Benchmarks: one workload definition, run in process or over HTTP against any OpenAI server."""
