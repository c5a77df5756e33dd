"""The Python API: vLLM's names, on an engine in this process or on the replicas of a plan."""
