#include "adapters.h"

#include <algorithm>

#include "simd.h"
#include "status.h"

namespace appl {
namespace {

constexpr int kBlockRanks = 16;                     // ranks that a thread takes at a time
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

// The rows of x that a piece reads, or the rows of out that it adds to.
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

// out[i] += scale[i] * (sums[i] @ up) for columns [begin, end) of a part; up has a row of `width` numbers a rank.
template <int Rows, class T>
void expand(const Piece& piece, const float* sums, size_t stride, const T* up, int width, int ranks, const appl_span& out, int start,
            int begin, int end) {
  const auto add = [&](int column, auto count, auto&& read, auto&& change) {
    constexpr int kCount = decltype(count)::value;
    Floats total[Rows][kCount] = {};
    for (int r = 0; r < ranks; ++r) {
      for (int v = 0; v < kCount; ++v) {
        const Floats weight = read(up + size_t(r) * size_t(width) + column + v * kWidth);
        for (int i = 0; i < Rows; ++i) total[i][v] = multiply_add(total[i][v], splat(sums[size_t(i) * stride + size_t(r)]), weight);
      }
    }
    for (int i = 0; i < Rows; ++i) {
      for (int v = 0; v < kCount; ++v) change(piece.at(out, i) + start + column + v * kWidth, splat(piece.rows[i].scale), total[i][v]);
    }
  };
  const auto whole = [](float* to, Floats scale, Floats total) { store(to, multiply_add(load(to), scale, total)); };
  const auto single = [](float* to, Floats scale, Floats total) { *to = multiply_add(splat(*to), scale, total)[0]; };
  int column = begin;
  for (; column + kVectors * kWidth <= end; column += kVectors * kWidth) {
    add(column, std::integral_constant<int, kVectors>{}, [](const T* from) { return numbers(from); }, whole);
  }
  for (; column + kWidth <= end; column += kWidth) {
    add(column, std::integral_constant<int, 1>{}, [](const T* from) { return numbers(from); }, whole);
  }
  for (; column < end; ++column) {
    add(column, std::integral_constant<int, 1>{}, [](const T* from) { return splat(number(from)); }, single);
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
      if (map.down == nullptr) continue;
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
      if (map.down == nullptr) continue;
      const int first = int(at % column_blocks) * kBlockColumns, last = std::min(first + kBlockColumns, op.out.width);
      const float* sums = sums_of(at / column_blocks);
      const T* up = static_cast<const T*>(map.up);
      for (int part = 0, start = 0; part < op.num_parts; start += op.widths[part], ++part) {
        const int width = op.widths[part], ranks = map.ranks[part];
        const int from = std::max(first - start, 0), to = std::min(last - start, width);
        if (ranks > 0 && from < to) {
          for_rows(piece.count,
                   [&](auto count) { expand<decltype(count)::value>(piece, sums, stride, up, width, ranks, op.out, start, from, to); });
        }
        sums += ranks;
        up += size_t(ranks) * size_t(width);
      }
    }
  });
}

}  // namespace

void AdapterRows::set(const appl_step& step, int32_t extent) {
  rows.clear();
  pieces.clear();
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
}

void check_adapter_linear(const appl_adapter_linear& op) {
  require(op.x.data != nullptr && op.out.data != nullptr && op.x.extent == op.out.extent, "adapter_linear: spans are missing or differ");
  require(op.layout == APPL_F32 || op.layout == APPL_BF16, "adapter_linear: maps are f32 or bf16");
  require(op.maps != nullptr && op.widths != nullptr, "adapter_linear: it has no maps or no parts");
  require(op.num_parts > 0 && op.num_slots > 0 && op.max_rank > 0, "adapter_linear: a size is not positive");
  int64_t width = 0;
  for (int part = 0; part < op.num_parts; ++part) width += op.widths[part];
  require(width == op.out.width, "adapter_linear: the parts do not fill the output");
}

size_t adapter_linear_bytes(const appl_adapter_linear& op, int max_rows) {
  return size_t(max_rows) * size_t(op.num_parts) * size_t(op.max_rank) * sizeof(float);
}

void run_adapter_linear(appl_pool& pool, const appl_adapter_linear& op, const AdapterRows& rows, float* scratch) {
  if (op.layout == APPL_F32) run_typed<float>(pool, op, rows, scratch);
  else run_typed<uint16_t>(pool, op, rows, scratch);
}

}  // namespace appl
