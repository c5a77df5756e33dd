"""Tokenizers, chat templates and incremental detokenization. Imports neither torch nor transformers."""
