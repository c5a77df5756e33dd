"""What a plan has of `model.tokenizer_mode`."""

from typing import Final, Literal

TokenizerMode = Literal["fast", "slow", "mistral-common", "custom"]
MISTRAL_COMMON: Final = "mistral-common"  # it encodes conversations, and no chat template is read
OTHERS: Final[tuple[Literal["slow", "custom"], ...]] = ("slow", "custom")  # whose tokens' bytes are not known
