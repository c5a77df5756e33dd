"""OpenAI's Files and Batches over the store and the runner of batch files."""
