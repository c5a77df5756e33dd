"""The routes of models that pool: embeddings, classes, scores and ranks."""
