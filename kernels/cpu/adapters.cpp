#include "adapters.h"

#include <algorithm>

#include "simd.h"
#include "status.h"

namespace appl {
namespace {

constexpr int kBlockRanks = 4;                      // ranks that a thread takes at a time: all threads have some of a rank of 16
constexpr int kBlockColumns = 64;                   // columns that a thread takes at a time
constexpr int kVectors = APPL_WIDTH == 16 ? 4 : 2;  // of columns that are summed together; more would not stay in registers

float number(const float* from) { return *from; }
float number(const uint16_t* from) { return bf16_to_float(*from); }
Floats numbers(const float* from) { return load(from); }
Floats numbers(const uint16_t* from) { return bf16_to_floats(load<Halves>(from)); }

int sum_of_ranks(const appl_adapter_map& map, int num_parts) {
  int sum = 0;
  for (int part = 0; part < num_parts; ++part) sum += map.ranks[part];
  return sum;
}

// Some rows of one adapter.
struct Piece {
  const AdapterRow* rows;
  int count;
  float* at(const appl_span& span, int i) const { return span.data + size_t(rows[i].row) * size_t(span.stride); }
};

// sums[i * stride + n] = dot product of x[i] and down[n], for Rows rows of x and Ranks of down.
template <int Rows, int Ranks, class T>
void shrink_tile(const float* const* x, const T* down, int width, float* sums, size_t stride) {
  Floats total[Rows][Ranks] = {};
  int column = 0;
  for (; column + kWidth <= width; column += kWidth) {
    for (int n = 0; n < Ranks; ++n) {
      const Floats weight = numbers(down + size_t(n) * size_t(width) + column);
      for (int i = 0; i < Rows; ++i) total[i][n] = multiply_add(total[i][n], load(x[i] + column), weight);
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int n = 0; n < Ranks; ++n) {
      float sum = reduce_add(total[i][n]);
      for (int rest = column; rest < width; ++rest) {
        sum = multiply_add(splat(sum), splat(x[i][rest]), splat(number(down + size_t(n) * size_t(width) + rest)))[0];
      }
      sums[size_t(i) * stride + size_t(n)] = sum;
    }
  }
}

template <int Rows, class T>
void shrink(const float* const* x, const T* down, int width, int ranks, float* sums, size_t stride) {
  constexpr int kTile = Rows > 2 ? 2 : 4;
  int n = 0;
  for (; n + kTile <= ranks; n += kTile) shrink_tile<Rows, kTile>(x, down + size_t(n) * size_t(width), width, sums + n, stride);
  for (; n < ranks; ++n) shrink_tile<Rows, 1>(x, down + size_t(n) * size_t(width), width, sums + n, stride);
}

// The change of some columns of `out`, of whose numbers the first is that of column `first`; `up` has a row of `stride` numbers a rank.
template <class T>
struct Columns {
  const T *up, *stretch, *shift;
  size_t stride;
  int ranks, first;
};

// out[i] += scale[i] * (sums[i] @ up + shift + stretch * out[i]) for columns [begin, end).
template <int Rows, class T>
void expand(const Columns<T>& of, const float* const* sums, const float* scales, float* const* out, int begin, int end) {
  const auto add = [&](int column, auto count, auto&& read, auto&& get, auto&& put) {
    constexpr int kCount = decltype(count)::value;
    Floats total[Rows][kCount] = {};
    for (int r = 0; r < of.ranks; ++r) {
      for (int v = 0; v < kCount; ++v) {
        const Floats weight = read(of.up + size_t(r) * of.stride + size_t(column - of.first + v * kWidth));
        for (int i = 0; i < Rows; ++i) total[i][v] = multiply_add(total[i][v], splat(sums[i][r]), weight);
      }
    }
    for (int v = 0; v < kCount; ++v) {
      const int at = column + v * kWidth;
      for (int i = 0; i < Rows; ++i) {
        Floats change = total[i][v];
        const Floats before = get(out[i] + at);
        if (of.shift != nullptr) change = change + read(of.shift + at - of.first);
        if (of.stretch != nullptr) change = multiply_add(change, read(of.stretch + at - of.first), before);
        put(out[i] + at, multiply_add(before, splat(scales[i]), change));
      }
    }
  };
  const auto get = [](const float* from) { return load(from); };
  const auto put = [](float* to, Floats value) { store(to, value); };
  int column = begin;
  for (; column + kVectors * kWidth <= end; column += kVectors * kWidth) {
    add(column, std::integral_constant<int, kVectors>{}, [](const T* from) { return numbers(from); }, get, put);
  }
  for (; column + kWidth <= end; column += kWidth) {
    add(column, std::integral_constant<int, 1>{}, [](const T* from) { return numbers(from); }, get, put);
  }
  for (; column < end; ++column) {
    add(column, std::integral_constant<int, 1>{}, [](const T* from) { return splat(number(from)); },
        [](const float* from) { return splat(*from); }, [](float* to, Floats value) { *to = value[0]; });
  }
}

template <class Body>
void for_rows(int count, Body&& body) {
  switch (count) {
    case 1: return body(std::integral_constant<int, 1>{});
    case 2: return body(std::integral_constant<int, 2>{});
    case 3: return body(std::integral_constant<int, 3>{});
    default: return body(std::integral_constant<int, kAdapterRows>{});
  }
}

// Calls body(columns of a part, place of its first sum, begin, end) for the columns [first, last) of a place. The columns of a whole matrix
// lie together by blocks, which `first` and `last` do not exceed.
template <class T, class Body>
void for_parts(const appl_adapter_map& map, const int32_t* widths, int num_parts, int rows_of_whole, int first, int last, Body&& body) {
  const T* up = static_cast<const T*>(map.up);
  const T *const stretch = static_cast<const T*>(map.stretch), *const shift = static_cast<const T*>(map.shift);
  const auto vector = [](const T* of_all, int start) { return of_all == nullptr ? nullptr : of_all + start; };
  if (map.is_whole != 0) {
    const size_t stride = size_t(std::min(kBlockColumns, widths[0] - first));
    up += size_t(first) * size_t(rows_of_whole);
    return body(Columns<T>{up, vector(stretch, first), vector(shift, first), stride, rows_of_whole, first}, 0, first, last);
  }
  for (int part = 0, start = 0, sum = 0; part < num_parts; ++part) {
    const int width = widths[part], ranks = map.ranks[part];
    const int begin = std::max(first, start), end = std::min(last, start + width);
    const bool changes = ranks > 0 || stretch != nullptr || shift != nullptr;
    if (changes && begin < end) {
      body(Columns<T>{up, vector(stretch, start), vector(shift, start), size_t(width), ranks, start}, sum, begin, end);
    }
    up += size_t(ranks) * size_t(width);
    sum += ranks;
    start += width;
  }
}

template <class T>
void run_typed(appl_pool& pool, const appl_adapter_linear& op, const AdapterRows& rows, float* scratch) {
  const size_t stride = size_t(op.num_parts) * size_t(op.max_rank);  // of the sums of a row
  const int64_t num_pieces = int64_t(rows.pieces.size());
  const auto piece_at = [&](int64_t at) { return Piece{rows.rows.data() + rows.pieces[size_t(at)].first, rows.pieces[size_t(at)].count}; };
  const auto sums_of = [&](int64_t at) { return scratch + size_t(rows.pieces[size_t(at)].first) * stride; };

  const int64_t rank_blocks = (int64_t(stride) + kBlockRanks - 1) / kBlockRanks;
  parallel_for(pool, num_pieces * rank_blocks, int64_t{kBlockRanks} * op.x.width, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const Piece piece = piece_at(at / rank_blocks);
      const appl_adapter_map& map = op.maps[piece.rows[0].slot];
      if (map.ranks == nullptr || map.is_whole != 0) continue;
      const int first = int(at % rank_blocks) * kBlockRanks, ranks = std::min(kBlockRanks, sum_of_ranks(map, op.num_parts) - first);
      if (ranks <= 0) continue;
      const float* x[kAdapterRows];
      for (int i = 0; i < piece.count; ++i) x[i] = piece.at(op.x, i);
      const T* const down = static_cast<const T*>(map.down) + size_t(first) * size_t(op.x.width);
      for_rows(piece.count,
               [&](auto count) { shrink<decltype(count)::value>(x, down, op.x.width, ranks, sums_of(at / rank_blocks) + first, stride); });
    }
  });

  const int64_t column_blocks = (int64_t{op.out.width} + kBlockColumns - 1) / kBlockColumns;
  parallel_for(pool, num_pieces * column_blocks, int64_t{kBlockColumns} * op.max_rank, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const Piece piece = piece_at(at / column_blocks);
      const appl_adapter_map& map = op.maps[piece.rows[0].slot];
      if (map.ranks == nullptr) continue;
      const int first = int(at % column_blocks) * kBlockColumns, last = std::min(first + kBlockColumns, op.out.width);
      float *out[kAdapterRows], scales[kAdapterRows];
      for (int i = 0; i < piece.count; ++i) {
        out[i] = piece.at(op.out, i);
        scales[i] = piece.rows[i].scale;
      }
      for_parts<T>(map, op.widths, op.num_parts, op.x.width, first, last, [&](const Columns<T>& columns, int sum, int from, int to) {
        const float* sums[kAdapterRows];
        for (int i = 0; i < piece.count; ++i) {
          sums[i] = map.is_whole != 0 ? piece.at(op.x, i) : sums_of(at / column_blocks) + size_t(i) * stride + sum;
        }
        for_rows(piece.count, [&](auto count) { expand<decltype(count)::value>(columns, sums, scales, out, from, to); });
      });
    }
  });
}

template <class T>
void embed_row(const appl_adapter_embed& op, const appl_adapter_map& map, int token, float scale, float* out) {
  const T* const down = static_cast<const T*>(map.down);
  const int width = op.out.width;
  if (map.is_whole != 0) {
    const float one = 1.0f;
    const float* const sums = &one;
    return expand<1, T>({down + size_t(token) * size_t(width), nullptr, nullptr, size_t(width), 1, 0}, &sums, &scale, &out, 0, width);
  }
  const int ranks = map.ranks[0];
  std::vector<float> low;
  for (int r = 0; r < ranks; ++r) low.push_back(number(down + size_t(token) * size_t(ranks) + r));
  const float* const sums = low.data();
  expand<1, T>({static_cast<const T*>(map.up), nullptr, nullptr, size_t(width), ranks, 0}, &sums, &scale, &out, 0, width);
}

template <class T>
void shrink_typed(const AdapterPlace& place, const float* x, int width, float* low) {
  const int ranks = sum_of_ranks(*place.map, place.num_parts);
  shrink<1>(&x, static_cast<const T*>(place.map->down), width, ranks, low, size_t(ranks));
}

template <class T>
void expand_typed(const AdapterPlace& place, const float* low, float scale, float* out) {
  int width = 0;
  for (int part = 0; part < place.num_parts; ++part) width += place.widths[part];
  for_parts<T>(*place.map, place.widths, place.num_parts, 0, 0, width, [&](const Columns<T>& columns, int sum, int from, int to) {
    const float* const sums = low + sum;
    expand<1>(columns, &sums, &scale, &out, from, to);
  });
}

}  // namespace

void AdapterRows::set(const appl_step& step, int32_t extent) {
  rows.clear();
  pieces.clear();
  places.clear();
  if (step.adapter_slots == nullptr) return;
  const auto add = [&](int row, int sequence) {
    if (step.adapter_slots[sequence] >= 0) rows.push_back({row, step.adapter_slots[sequence], step.adapter_scales[sequence]});
  };
  if (extent == APPL_TOKENS) {
    for (int s = 0; s < step.num_seqs; ++s) {
      for (int t = step.query_start[s]; t < step.query_start[s + 1]; ++t) add(t, s);
    }
  } else {
    for (int r = 0; r < step.num_sampled; ++r) {
      const int32_t* const after = std::upper_bound(step.query_start, step.query_start + step.num_seqs + 1, step.sampled_rows[r]);
      add(r, int(after - step.query_start) - 1);
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const AdapterRow& a, const AdapterRow& b) { return a.slot < b.slot; });
  for (size_t i = 0; i < rows.size(); ++i) {
    const bool joins = !pieces.empty() && pieces.back().count < kAdapterRows && rows[i].slot == rows[i - 1].slot;
    if (joins) ++pieces.back().count;
    else pieces.push_back({int32_t(i), 1});
  }
  places.assign(size_t(extent == APPL_TOKENS ? step.num_tokens : step.num_sampled), -1);
  for (size_t i = 0; i < rows.size(); ++i) places[size_t(rows[i].row)] = int32_t(i);
}

namespace {

void check_maps(const appl_adapter_map* maps, int num_slots, int max_rank, int layout) {
  require(layout == APPL_F32 || layout == APPL_BF16, "adapters: maps are f32 or bf16");
  require(maps != nullptr, "adapters: an operator has no maps");
  require(num_slots > 0 && max_rank > 0, "adapters: a size is not positive");
}

}  // namespace

void check_adapter_linear(const appl_adapter_linear& op) {
  require(op.x.data != nullptr && op.out.data != nullptr && op.x.extent == op.out.extent, "adapter_linear: spans are missing or differ");
  check_maps(op.maps, op.num_slots, op.max_rank, op.layout);
  require(op.widths != nullptr && op.num_parts > 0, "adapter_linear: it has no parts");
  int64_t width = 0;
  for (int part = 0; part < op.num_parts; ++part) width += op.widths[part];
  require(width == op.out.width, "adapter_linear: the parts do not fill the output");
}

void check_adapter_embed(const appl_adapter_embed& op) {
  check_maps(op.maps, op.num_slots, op.max_rank, op.layout);
  require(op.out.data != nullptr && op.out.extent == APPL_TOKENS && op.num_tokens > 0, "adapter_embed: it has no rows");
}

void check_adapter_experts(const appl_adapter_experts& op) { check_maps(op.maps, op.num_slots, op.max_rank, op.layout); }

size_t adapter_linear_bytes(const appl_adapter_linear& op, int max_rows) {
  return size_t(max_rows) * size_t(op.num_parts) * size_t(op.max_rank) * sizeof(float);
}

void run_adapter_linear(appl_pool& pool, const appl_adapter_linear& op, const AdapterRows& rows, float* scratch) {
  if (op.layout == APPL_F32) run_typed<float>(pool, op, rows, scratch);
  else run_typed<uint16_t>(pool, op, rows, scratch);
}

void run_adapter_embed(appl_pool& pool, const appl_adapter_embed& op, const AdapterRows& rows, const appl_step& step) {
  parallel_for(pool, int64_t(rows.rows.size()), int64_t{op.max_rank} * op.out.width, [&](int64_t begin, int64_t end) {
    for (int64_t at = begin; at < end; ++at) {
      const AdapterRow& row = rows.rows[size_t(at)];
      const appl_adapter_map& map = op.maps[row.slot];
      const int token = step.token_ids[row.row];
      const bool is_given = step.embeds != nullptr && step.embed_of[row.row] >= 0;
      if (map.ranks == nullptr || token >= op.num_tokens || is_given) continue;
      float* const out = op.out.data + size_t(row.row) * size_t(op.out.stride);
      if (op.layout == APPL_F32) embed_row<float>(op, map, token, op.scale * row.scale, out);
      else embed_row<uint16_t>(op, map, token, op.scale * row.scale, out);
    }
  });
}

void adapter_shrink(const AdapterPlace& place, const float* x, int width, float* low) {
  if (place.layout == APPL_F32) shrink_typed<float>(place, x, width, low);
  else shrink_typed<uint16_t>(place, x, width, low);
}

void adapter_expand(const AdapterPlace& place, const float* low, float scale, float* out) {
  if (place.layout == APPL_F32) expand_typed<float>(place, low, scale, out);
  else expand_typed<uint16_t>(place, low, scale, out);
}

}  // namespace appl
