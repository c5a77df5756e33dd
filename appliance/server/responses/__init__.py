"""OpenAI's Responses API, translated to one chat turn and back."""
