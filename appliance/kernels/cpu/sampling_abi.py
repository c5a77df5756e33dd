"""The ctypes mirror of appl_sampling in kernels/include/appliance_abi.h."""

from ctypes import Structure, c_int32, c_void_p

from appliance.catalog.sampling import COLUMNS

SAMPLING_INPUTS = (
    *(column.name for column in COLUMNS),
    "seed",
    "position",
    "token_table",
    "token_row",
    "num_prompt_tokens",
    "num_tokens",
    "bias_start",
    "bias_ids",
    "bias_values",
    "forbidden_start",
    "forbidden_ids",
    "mask_row",
    "mask_bits",
    "given_token_ids",
    "num_logprobs",
)


class SamplingCall(Structure):
    _fields_ = [
        *(
            (name, c_int32)
            for name in (
                "num_rows",
                "vocab_size",
                "logits_stride",
                "token_table_stride",
                "mask_stride",
                "logprobs_stride",
                "raw_logprobs",
                "normalize",
            )
        ),
        ("logits", c_void_p),
        *((name, c_void_p) for name in SAMPLING_INPUTS),
        *((name, c_void_p) for name in ("token_ids", "logprob_ids", "ranks", "logprobs")),
    ]
