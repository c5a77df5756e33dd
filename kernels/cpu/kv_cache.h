// The paged cache. A block holds, for each KV head, its keys and its values as panels that the tiles of a Linear read:
// keys as a weight of `slots` rows and `key_width` columns, values as a weight of `value_width` rows and `slots` columns.
// `slots` is block_size and a width is key_dim or value_dim, each rounded up to 16. bf16 columns are in pairs.
//
// A cache of codes (kv_codes.h) has columns in fours, and behind the heads of a block the scales of their slots, as f32.
#pragma once

#include <cstdint>

#include "appliance_abi.h"
#include "kv_codes.h"
#include "pool.h"

namespace appl {

struct KvGeometry {
  appl_layout layout;
  int block_size, slots, num_blocks, num_kv_heads, key_dim, value_dim, key_width, value_width, max_model_len;
  // From one block to the next: the bytes of a block, or more if other caches share its memory.
  size_t key_stride, value_stride;
  bool values_in_keys = false;  // the values are the first columns of the keys, and not stored again

  KvGeometry(const appl_limits& limits, int num_kv_heads, int key_dim, int value_dim);
  bool has_codes() const { return is_code_layout(layout); }
  size_t element_bytes() const { return layout == APPL_F32 ? 4 : has_codes() ? 1 : 2; }
  size_t key_head_bytes() const { return size_t(slots) * size_t(key_width) * element_bytes(); }
  size_t value_head_bytes() const { return size_t(slots) * size_t(value_width) * element_bytes(); }
  size_t scale_bytes() const { return has_codes() ? size_t(slots) * sizeof(float) : 0; }  // of a head
  size_t key_block_bytes() const { return (key_head_bytes() + scale_bytes()) * size_t(num_kv_heads); }
  size_t value_block_bytes() const { return (value_head_bytes() + scale_bytes()) * size_t(num_kv_heads); }
  size_t key_offset(int block, int head) const { return size_t(block) * key_stride + size_t(head) * key_head_bytes(); }
  size_t value_offset(int block, int head) const { return size_t(block) * value_stride + size_t(head) * value_head_bytes(); }
  // The bytes of a panel: sixteen tokens of keys, or sixteen columns of values.
  size_t key_panel_bytes() const { return size_t(key_width) * 16 * element_bytes(); }
  size_t value_panel_bytes() const { return size_t(slots) * 16 * element_bytes(); }
};

struct KvLayer {
  KvGeometry geometry;
  uint8_t* keys;
  uint8_t* values;
  int group;

  // Those of a head's slots in a block of codes.
  float* key_scales(int block, int head) const {
    return scales(keys + size_t(block) * geometry.key_stride + size_t(geometry.num_kv_heads) * geometry.key_head_bytes(), head);
  }
  float* value_scales(int block, int head) const {
    if (geometry.values_in_keys) return key_scales(block, head);
    return scales(values + size_t(block) * geometry.value_stride + size_t(geometry.num_kv_heads) * geometry.value_head_bytes(), head);
  }

 private:
  float* scales(uint8_t* first, int head) const { return reinterpret_cast<float*>(first + size_t(head) * geometry.scale_bytes()); }
};

// Returns the step as caches of one group see it: its slots and block tables begin with those of the group.
inline appl_step of_group(appl_step step, int group) {
  step.slot_mapping += size_t(group) * size_t(step.num_tokens);
  step.block_tables += size_t(group) * size_t(step.num_seqs) * size_t(step.block_table_stride);
  return step;
}

// Copies the values of a block, which are the first columns of its keys, into the form of a block of values.
void values_of_keys(const KvGeometry& geometry, const uint8_t* keys, uint8_t* values);

// Never stores a value that is not finite, so that a failed sequence cannot affect the next owner of its blocks.
void run_kv_write(appl_pool& pool, const appl_kv_write& op, const KvLayer& layer, const appl_step& step);

}  // namespace appl
