"""OpenAI batch files: every line of the input is answered exactly once, however often the run is killed."""
