"""Embeddings that a step is given in place of token ids."""

from dataclasses import dataclass

import numpy as np

from appliance.kernels.errors import StepError


@dataclass(slots=True)
class StepEmbeds:
    """rows: f32 [N, D], without gaps. row_of: int32 [T], which of them is the embedding of each token; negative: it is
    the table's row, of the token's id. The id of a token that has one of `rows` is that of any token."""

    rows: np.ndarray
    row_of: np.ndarray

    def check(self, num_tokens: int, width: int | None) -> None:
        """width: of the embeddings that the program takes; None: it takes none. Raises StepError if they do not fit."""
        if width is None:
            raise StepError("step: it has embeddings, and the program takes none")
        rows, row_of = self.rows, self.row_of
        if rows.dtype != np.float32 or rows.ndim != 2 or rows.shape[1] != width or not rows.flags.c_contiguous:
            raise StepError(f"step: its embeddings are not rows of {width} floats without gaps")
        if row_of.dtype != np.int32 or row_of.shape != (num_tokens,) or not row_of.flags.c_contiguous:
            raise StepError("step: the tokens and their embeddings differ in number")
        if num_tokens and row_of.max() >= len(rows):
            raise StepError("step: a token has an embedding that is not there")
