"""The OpenAI-compatible HTTP server of one planned engine."""
