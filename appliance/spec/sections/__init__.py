"""The sections of a deployment, one file each. A field that means what a vLLM argument means has its name."""
