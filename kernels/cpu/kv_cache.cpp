#include "kv_cache.h"

#include <algorithm>

#include "kv_codes.h"
#include "memory.h"
#include "simd.h"

namespace appl {

KvGeometry::KvGeometry(const appl_limits& limits, int kv_heads, int keys, int values)
    : layout(appl_layout(limits.kv_layout)), block_size(limits.block_size), slots(int(round_up(size_t(limits.block_size), kPanel))),
      num_blocks(limits.num_blocks), num_kv_heads(kv_heads), key_dim(keys), value_dim(values),
      key_width(int(round_up(size_t(keys), kPanel))), value_width(int(round_up(size_t(values), kPanel))),
      max_model_len(limits.max_model_len), key_stride(key_block_bytes()), value_stride(value_block_bytes()) {}

namespace {

// NaN becomes 0; larger magnitudes become `limit`.
Floats finite(Floats x, float limit) { return x == x ? vmin(vmax(x, splat(-limit)), splat(limit)) : Floats{}; }

// The form of an element in the cache. A Unit is the adjacent columns of one token's key: bf16 columns are in pairs, codes in fours.
// kHasScale: it is a code, of a number that is divided by the scale of its token and head.
struct F32Element {
  using Type = float;
  using Unit = float;
  static constexpr bool kHasScale = false;
  static Floats convert(Floats x) { return finite(x, 3.38e38f); }
};
struct F16Element {
  using Type = uint16_t;
  using Unit = uint16_t;
  static constexpr bool kHasScale = false;
  static Halves convert(Floats x) { return floats_to_f16(finite(x, 65504.0f)); }
};
struct Bf16Element {
  using Type = uint16_t;
  using Unit = uint32_t;
  static constexpr bool kHasScale = false;
  static Halves convert(Floats x) { return __builtin_convertvector(numbers_to_bf16(finite(x, 3.38e38f)), Halves); }
};
template <appl_layout Layout>
struct CodeElement {
  using Type = uint8_t;
  using Unit = uint32_t;
  static constexpr bool kHasScale = true;
  static constexpr float kLargest = largest_code(Layout);
  static Octets convert(Floats x) { return code_of<Layout>(vmin(vmax(x, splat(-kLargest)), splat(kLargest))); }
};

// Tokens of a step whose slots follow each other in one panel of a block.
struct TokenRun {
  int64_t first;
  int count, block, slot;
};

// Writes one head of a run, up to kColumns columns at a time: it first converts row by row, then stores line by line, because a line of
// the cache holds all sixteen tokens.
template <class Element>
class HeadWriter {
  using Type = typename Element::Type;
  using Unit = typename Element::Unit;
  static constexpr int kPair = sizeof(Unit) / sizeof(Type), kColumns = 64;

 public:
  HeadWriter(const KvGeometry& geometry, const TokenRun& run) : g_(geometry), run_(run) {}

  // scales: of the head's slots, for codes.
  void write_keys_of(const appl_span& keys, int head, uint8_t* key_head, float* scales) {
    uint8_t* const panel = key_head + size_t(run_.slot / kPanel) * g_.key_panel_bytes();
    block_ = turned_keys(g_.layout, g_.key_dim);
    find_scales(keys, head * g_.key_dim, g_.key_dim, scales);
    for (int column = 0; column < g_.key_dim; column += kColumns) {
      const int columns = std::min(kColumns, g_.key_dim - column);
      convert(keys, head * g_.key_dim + column, columns);
      write_keys(reinterpret_cast<Unit*>(panel) + column / kPair * kPanel, columns);
    }
  }
  void write_values_of(const appl_span& values, int head, uint8_t* value_head, float* scales) {
    block_ = 1;
    find_scales(values, head * g_.value_dim, g_.value_dim, scales);
    for (int column = 0; column < g_.value_dim; column += kColumns) {
      const int columns = std::min(kColumns, g_.value_dim - column);
      convert(values, head * g_.value_dim + column, columns);
      write_values(reinterpret_cast<Type*>(value_head + size_t(column / kPanel) * g_.value_panel_bytes()), columns);
    }
  }

 private:
  // Of codes: stores the scale of each token, which makes its largest magnitude the largest code.
  void find_scales(const appl_span& x, int column, int columns, float* scales) {
    if constexpr (Element::kHasScale) {
      for (int t = 0; t < run_.count; ++t) {
        Floats most{};
        for (int i = 0; i < columns; i += kColumns) {
          const float* const row = load_row(x, t, column + i, std::min(kColumns, columns - i));
          for (int j = 0; j < kColumns; j += kWidth) most = vmax(vabs(load(row + j)), most);
        }
        const float scale = std::max(reduce_max(most) / Element::kLargest, kLeastScale);
        inverse_[t] = 1.0f / scale;
        scales[run_.slot + t] = scale / float(block_);  // queries are not scaled either when they are turned
      }
    }
  }

  // Of codes: returns columns of a token as finite numbers, turned if they are those of a key, and zeros up to kColumns.
  const float* load_row(const appl_span& x, int t, int column, int columns) {
    const float* from = x.data + size_t(run_.first + t) * size_t(x.stride) + column;
    std::fill_n(std::copy_n(from, columns, row_), kColumns - columns, 0.0f);
    for (int i = 0; i < kColumns; i += kWidth) store(row_ + i, finite(load(row_ + i), kMostInCode));
    if (block_ > 1) turn(row_, kColumns, block_);
    return row_;
  }

  // Converts columns; those up to the next multiple of sixteen become 0.
  void convert(const appl_span& x, int column, int columns) {
    for (int t = 0; t < run_.count; ++t) {
      if constexpr (Element::kHasScale) {
        const float* const row = load_row(x, t, column, columns);
        for (int i = 0; i < kColumns; i += kWidth) store(rows_[t] + i, Element::convert(load(row + i) * inverse_[t]));
        continue;
      }
      const float* from = x.data + size_t(run_.first + t) * size_t(x.stride) + column;
      for (int i = 0; i < int(round_up(size_t(columns), kPanel)); i += kWidth) {
        Floats v{};
        if (i + kWidth <= columns) v = load(from + i);
        else if (i < columns) std::memcpy(&v, from + i, size_t(columns - i) * sizeof(float));
        store(rows_[t] + i, Element::convert(v));
      }
    }
  }

  void write_keys(Unit* panel, int columns) const {
    const int units = (columns + kPair - 1) / kPair;
    if (run_.count == kPanel) store_units(panel, units, std::integral_constant<int, kPanel>());
    else store_units(panel + run_.slot % kPanel, units, run_.count);
  }

  template <class Count>  // a constant if the panel is full
  void store_units(Unit* out, int units, Count count) const {
    for (int u = 0; u < units; ++u, out += kPanel)
      for (int t = 0; t < count; ++t) out[t] = load<Unit>(rows_[t] + u * kPair);
  }

  void write_values(Type* panel, int columns) const {
    for (int column = 0; column < columns; column += kPanel, panel += size_t(g_.slots) * kPanel) {
      for (int t = 0, tokens = 1; t < run_.count; t += tokens) {
        const int slot = run_.slot + t;
        Type* out = panel + slot / kPair * kPanel * kPair;
        tokens = slot % kPair == 0 && t + kPair <= run_.count ? kPair : 1;
        if (tokens == kPair) store_slots(out, t, column);
        else
          for (int j = 0; j < kPanel; ++j) out[j * kPair + slot % kPair] = rows_[t][column + j];
      }
    }
  }

  // Stores sixteen columns of a unit's tokens.
  void store_slots(Type* out, int t, int column) const {
    if constexpr (kPair == 1) {
      std::copy_n(rows_[t] + column, kPanel, out);
    } else {
      for (int j = 0; j < kPanel; j += kWidth) {
        using Elements = std::conditional_t<sizeof(Type) == 1, Octets, Halves>;
        Words unit{};
        for (int k = 0; k < kPair; ++k) unit |= widen(load<Elements>(rows_[t + k] + column + j)) << (8 * int(sizeof(Type)) * k);
        store(out + j * kPair, unit);
      }
    }
  }

  const KvGeometry& g_;
  const TokenRun run_;
  int block_ = 1;          // of columns that are turned
  float inverse_[kPanel];  // of the scales, for codes
  alignas(64) float row_[kColumns];
  alignas(64) Type rows_[kPanel][kColumns];
};

// The run that begins at token `first`; it ends before `end`.
TokenRun run_at(const KvGeometry& g, const int32_t* slots, int64_t first, int64_t end) {
  TokenRun run{first, 1, slots[first] / g.block_size, slots[first] % g.block_size};
  const int most = std::min(g.block_size - run.slot, kPanel - run.slot % kPanel);
  while (run.count < most && first + run.count < end && slots[first + run.count] == slots[first] + run.count) ++run.count;
  return run;
}

template <class Element>
void write_run(const appl_kv_write& op, const KvLayer& layer, const TokenRun& run) {
  const KvGeometry& g = layer.geometry;
  HeadWriter<Element> writer(g, run);
  for (int head = 0; head < g.num_kv_heads; ++head) {
    writer.write_keys_of(op.k, head, layer.keys + g.key_offset(run.block, head), layer.key_scales(run.block, head));
    if (g.values_in_keys) continue;
    writer.write_values_of(op.v, head, layer.values + g.value_offset(run.block, head), layer.value_scales(run.block, head));
  }
}

template <class Element>
void write_tokens(appl_pool& pool, const appl_kv_write& op, const KvLayer& layer, const appl_step& step) {
  const int64_t chunk = step.num_tokens == step.num_seqs ? 2 : 2 * kPanel;  // tokens; only the slots of a prompt follow each other
  const auto write = [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end;) {
      if (step.slot_mapping[t] < 0) {
        ++t;
        continue;
      }
      const TokenRun run = run_at(layer.geometry, step.slot_mapping, t, end);
      write_run<Element>(op, layer, run);
      t += run.count;
    }
  };
  constexpr int kWorth = 8;  // the cost in plain elements: each pair of a key's columns is in a separate line
  parallel_for(pool, step.num_tokens, int64_t{kWorth} * (op.k.width + op.v.width), write, chunk);
}

// Of one panel: sixteen tokens, and sixteen columns at a time.
template <class Element>
void values_of_panel(const KvGeometry& g, const typename Element::Type* keys, typename Element::Type* values) {
  using Type = typename Element::Type;
  constexpr int kPair = sizeof(typename Element::Unit) / sizeof(Type);
  for (int column = 0; column < g.value_width; column += kPanel, values += size_t(g.slots) * kPanel) {
    for (int c = 0; c < kPanel; ++c) {
      const Type* const from = keys + size_t((column + c) / kPair) * kPanel * kPair + c % kPair;
      Type* const to = values + c * kPair;
      for (int t = 0; t < kPanel; ++t) to[t / kPair * kPanel * kPair + t % kPair] = from[t * kPair];
    }
  }
}

template <class Element>
void values_of_block(const KvGeometry& g, const uint8_t* keys, uint8_t* values) {
  using Type = typename Element::Type;
  for (int slot = 0; slot < g.slots; slot += kPanel) {
    const auto* const panel = reinterpret_cast<const Type*>(keys + size_t(slot / kPanel) * g.key_panel_bytes());
    values_of_panel<Element>(g, panel, reinterpret_cast<Type*>(values) + size_t(slot) * kPanel);
  }
}

}  // namespace

void values_of_keys(const KvGeometry& g, const uint8_t* keys, uint8_t* values) {
  switch (g.layout) {
    case APPL_F32: return values_of_block<F32Element>(g, keys, values);
    case APPL_F16: return values_of_block<F16Element>(g, keys, values);
    case APPL_F8:
    case APPL_E5M2: return values_of_block<CodeElement<APPL_F8>>(g, keys, values);
    default: return values_of_block<Bf16Element>(g, keys, values);
  }
}

void run_kv_write(appl_pool& pool, const appl_kv_write& op, const KvLayer& layer, const appl_step& step) {
  switch (layer.geometry.layout) {
    case APPL_F32: return write_tokens<F32Element>(pool, op, layer, step);
    case APPL_F16: return write_tokens<F16Element>(pool, op, layer, step);
    case APPL_INT8: return write_tokens<CodeElement<APPL_INT8>>(pool, op, layer, step);
    case APPL_F8: return write_tokens<CodeElement<APPL_F8>>(pool, op, layer, step);
    case APPL_E5M2: return write_tokens<CodeElement<APPL_E5M2>>(pool, op, layer, step);
    default: return write_tokens<Bf16Element>(pool, op, layer, step);
  }
}

}  // namespace appl
