"""Anthropic's Messages API, translated to one chat turn and back."""
