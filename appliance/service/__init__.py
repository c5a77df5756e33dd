"""Text in, text out: an asynchronous client of the engine, its supervision, and the figures that both give."""
