"""The errors of the text layer."""

from appliance.base.errors import ApplianceError


class TokenizerError(ApplianceError):
    """No tokenizer can be built from the checkpoint's files."""


class ChatTemplateError(ApplianceError):
    """A chat template is invalid, refused the conversation, or exceeded its bounds."""
