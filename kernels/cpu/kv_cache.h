// The paged cache. A block holds, for each KV head, its keys and its values as panels that the tiles of a Linear read:
// keys as a weight of `slots` rows and `width` columns, values as a weight of `width` rows and `slots` columns.
// `slots` is block_size and `width` is head_dim, each rounded up to 16. bf16 columns are in pairs.
#pragma once

#include <cstdint>

#include "appliance_abi.h"
#include "pool.h"

namespace appl {

struct KvGeometry {
  appl_layout layout;
  int block_size, slots, num_blocks, num_kv_heads, head_dim, width, max_model_len;
  size_t stride;  // from one block to the next: the bytes of a block, or more if other caches share its memory

  KvGeometry(const appl_limits& limits, int num_kv_heads, int head_dim);
  size_t element_bytes() const { return layout == APPL_F32 ? 4 : 2; }
  size_t head_bytes() const { return size_t(slots) * size_t(width) * element_bytes(); }
  size_t block_bytes() const { return head_bytes() * size_t(num_kv_heads); }
  size_t offset(int block, int head) const { return size_t(block) * stride + size_t(head) * head_bytes(); }
  // The bytes of a panel: sixteen tokens of keys, or sixteen columns of values.
  size_t key_panel_bytes() const { return size_t(width) * 16 * element_bytes(); }
  size_t value_panel_bytes() const { return size_t(slots) * 16 * element_bytes(); }
};

struct KvLayer {
  KvGeometry geometry;
  uint8_t* keys;
  uint8_t* values;
  int group;
};

// Returns the step as caches of one group see it: its slots and block tables begin with those of the group.
inline appl_step of_group(appl_step step, int group) {
  step.slot_mapping += size_t(group) * size_t(step.num_tokens);
  step.block_tables += size_t(group) * size_t(step.num_seqs) * size_t(step.block_table_stride);
  return step;
}

// Never stores a value that is not finite, so that a failed sequence cannot affect the next owner of its blocks.
void run_kv_write(appl_pool& pool, const appl_kv_write& op, const KvLayer& layer, const appl_step& step);

}  // namespace appl
