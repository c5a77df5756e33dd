"""What can go wrong with text."""

from appliance.base.errors import ApplianceError


class TokenizerError(ApplianceError):
    """A tokenizer cannot be built from what the checkpoint holds."""


class ChatTemplateError(ApplianceError):
    """A chat template is broken, or refused the conversation, or went over its bounds."""
