#include "kv_cache.h"

#include <algorithm>

#include "memory.h"
#include "simd.h"

namespace appl {

KvGeometry::KvGeometry(const appl_limits& limits, int kv_heads, int dim)
    : layout(appl_layout(limits.kv_layout)),
      block_size(limits.block_size),
      slots(int(round_up(size_t(limits.block_size), kPanel))),
      num_blocks(limits.num_blocks),
      num_kv_heads(kv_heads),
      head_dim(dim),
      width(int(round_up(size_t(dim), kPanel))),
      max_model_len(limits.max_model_len) {}

namespace {

// NaN becomes 0, anything beyond `limit` becomes it.
float finite(float x, float limit) { return x == x ? std::min(std::max(x, -limit), limit) : 0.0f; }

struct F32Element {
  using Type = float;
  static constexpr int kPair = 1;
  static float convert(float x) { return finite(x, 3.38e38f); }
};
struct F16Element {
  using Type = uint16_t;
  static constexpr int kPair = 1;
  static uint16_t convert(float x) { return float_to_f16(finite(x, 65504.0f)); }
};
struct Bf16Element {
  using Type = uint16_t;
  static constexpr int kPair = 2;
  static uint16_t convert(float x) { return float_to_bf16(finite(x, 3.38e38f)); }
};

template <class Element>
void write_key(const KvGeometry& g, uint8_t* head, int slot, const float* k) {
  constexpr int kPair = Element::kPair;
  auto* out = reinterpret_cast<typename Element::Type*>(head + size_t(slot / kPanel) * g.key_panel_bytes());
  out += slot % kPanel * kPair;
  for (int j = 0; j < g.head_dim; ++j) out[j / kPair * kPanel * kPair + j % kPair] = Element::convert(k[j]);
}

template <class Element>
void write_value(const KvGeometry& g, uint8_t* head, int slot, const float* v) {
  constexpr int kPair = Element::kPair;
  auto* out = reinterpret_cast<typename Element::Type*>(head) + slot / kPair * kPanel * kPair + slot % kPair;
  const int panel = g.slots * kPanel;
  for (int j = 0; j < g.head_dim; ++j) out[j / kPanel * panel + j % kPanel * kPair] = Element::convert(v[j]);
}

template <class Element>
void write_token(const KvLayer& layer, int slot_index, const float* k, const float* v) {
  const KvGeometry& g = layer.geometry;
  const int block = slot_index / g.block_size, slot = slot_index % g.block_size;
  for (int head = 0; head < g.num_kv_heads; ++head, k += g.head_dim, v += g.head_dim) {
    write_key<Element>(g, layer.keys + g.offset(block, head), slot, k);
    write_value<Element>(g, layer.values + g.offset(block, head), slot, v);
  }
}

template <class Element>
void write_tokens(appl_pool& pool, const appl_kv_write& op, const KvLayer& layer, const appl_step& step) {
  parallel_for(pool, step.num_tokens, op.k.width * 4, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (step.slot_mapping[t] < 0) continue;
      write_token<Element>(layer, step.slot_mapping[t], op.k.data + size_t(t) * size_t(op.k.stride),
                           op.v.data + size_t(t) * size_t(op.v.stride));
    }
  });
}

}  // namespace

void run_kv_write(appl_pool& pool, const appl_kv_write& op, const KvLayer& layer, const appl_step& step) {
  switch (layer.geometry.layout) {
    case APPL_F32: return write_tokens<F32Element>(pool, op, layer, step);
    case APPL_F16: return write_tokens<F16Element>(pool, op, layer, step);
    default: return write_tokens<Bf16Element>(pool, op, layer, step);
  }
}

}  // namespace appl
