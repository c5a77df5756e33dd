"""The GGUF tensor names of families that name all their modules in their own way, and their Hugging Face names."""

from typing import Final

GPT2: Final = {
    "token_embd": "transformer.wte",
    "position_embd": "transformer.wpe",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{n}.attn_norm": "transformer.h.{n}.ln_1",
    "blk.{n}.attn_qkv": "transformer.h.{n}.attn.c_attn",
    "blk.{n}.attn_output": "transformer.h.{n}.attn.c_proj",
    "blk.{n}.ffn_norm": "transformer.h.{n}.ln_2",
    "blk.{n}.ffn_up": "transformer.h.{n}.mlp.c_fc",
    "blk.{n}.ffn_down": "transformer.h.{n}.mlp.c_proj",
}
LFM2: Final = {
    "token_embd": "model.embed_tokens",
    "token_embd_norm": "model.embedding_norm",
    "output": "lm_head",
    "blk.{n}.attn_norm": "model.layers.{n}.operator_norm",
    "blk.{n}.attn_q": "model.layers.{n}.self_attn.q_proj",
    "blk.{n}.attn_k": "model.layers.{n}.self_attn.k_proj",
    "blk.{n}.attn_v": "model.layers.{n}.self_attn.v_proj",
    "blk.{n}.attn_output": "model.layers.{n}.self_attn.out_proj",
    "blk.{n}.attn_q_norm": "model.layers.{n}.self_attn.q_layernorm",
    "blk.{n}.attn_k_norm": "model.layers.{n}.self_attn.k_layernorm",
    "blk.{n}.shortconv.conv": "model.layers.{n}.conv.conv",
    "blk.{n}.shortconv.in_proj": "model.layers.{n}.conv.in_proj",
    "blk.{n}.shortconv.out_proj": "model.layers.{n}.conv.out_proj",
    "blk.{n}.ffn_norm": "model.layers.{n}.ffn_norm",
    "blk.{n}.ffn_gate": "model.layers.{n}.feed_forward.w1",
    "blk.{n}.ffn_up": "model.layers.{n}.feed_forward.w3",
    "blk.{n}.ffn_down": "model.layers.{n}.feed_forward.w2",
}
GPT_NEOX: Final = {
    "token_embd": "gpt_neox.embed_in",
    "output_norm": "gpt_neox.final_layer_norm",
    "output": "embed_out",
    "blk.{n}.attn_norm": "gpt_neox.layers.{n}.input_layernorm",
    "blk.{n}.attn_qkv": "gpt_neox.layers.{n}.attention.query_key_value",
    "blk.{n}.attn_output": "gpt_neox.layers.{n}.attention.dense",
    "blk.{n}.ffn_norm": "gpt_neox.layers.{n}.post_attention_layernorm",
    "blk.{n}.ffn_up": "gpt_neox.layers.{n}.mlp.dense_h_to_4h",
    "blk.{n}.ffn_down": "gpt_neox.layers.{n}.mlp.dense_4h_to_h",
}
_FUSED: Final = {
    "attn_qkv": "self_attention.query_key_value",
    "attn_output": "self_attention.dense",
    "ffn_up": "mlp.dense_h_to_4h",
    "ffn_down": "mlp.dense_4h_to_h",
}
FALCON: Final = {
    "token_embd": "transformer.word_embeddings",
    "output_norm": "transformer.ln_f",
    "output": "lm_head",
    "blk.{n}.attn_norm": "transformer.h.{n}.input_layernorm",
    **{f"blk.{{n}}.{stored}": f"transformer.h.{{n}}.{name}" for stored, name in _FUSED.items()},
}
MPT: Final = {
    "token_embd": "transformer.wte",
    "output_norm": "transformer.norm_f",
    "output": "lm_head",
    "blk.{n}.attn_norm": "transformer.blocks.{n}.norm_1",
    "blk.{n}.attn_qkv": "transformer.blocks.{n}.attn.Wqkv",
    "blk.{n}.attn_output": "transformer.blocks.{n}.attn.out_proj",
    "blk.{n}.ffn_norm": "transformer.blocks.{n}.norm_2",
    "blk.{n}.ffn_up": "transformer.blocks.{n}.ffn.up_proj",
    "blk.{n}.ffn_down": "transformer.blocks.{n}.ffn.down_proj",
}
