#include "prepared.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "activation.h"
#include "simd.h"

namespace appl {
namespace {

using Bytes = int8_t __attribute__((vector_size(kWidth)));

struct Group {
  float scale;
  float sum;
};

constexpr int32_t kInfinity = 0x7f800000;  // magnitudes are ordered like their bits, and all finite ones are below this

// The largest magnitude; NaN if any value is NaN or infinite.
float magnitude(const float* x, int count) {
  Ints best{};
  int k = 0;
  for (; k + kWidth <= count; k += kWidth) {
    const Ints bits = load<Ints>(x + k) & 0x7fffffff;
    best = bits > best ? bits : best;
  }
  int32_t result = reduce(best, [](auto a, auto b) { return a > b ? a : b; });
  for (; k < count; ++k) result = std::max(result, bit_cast<int32_t>(x[k]) & 0x7fffffff);
  return result < kInfinity ? bit_cast<float>(result) : std::numeric_limits<float>::quiet_NaN();
}

void store_rounded(int8_t* out, Ints q) { store(out, __builtin_convertvector(q, Bytes)); }
void store_rounded(int16_t* out, Ints q) { store_words(out, q); }

// Converts two vectors at once, with instructions that the compiler does not find.
template <class Value>
void store_rounded(Value* out, Ints first, Ints second) {
#if APPL_WIDTH == 8
  const __m256i mixed = _mm256_packs_epi32(bit_cast<__m256i>(first), bit_cast<__m256i>(second));  // 128 bits at a time
  const __m256i words = _mm256_permute4x64_epi64(mixed, 0xd8);
  if constexpr (sizeof(Value) == 2) store(out, _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8));
  else store(out, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#else
  store_rounded(out, first);
  store_rounded(out + kWidth, second);
#endif
}

// The factor that scales values of that magnitude for rounding; 0 if all are zero, or so small that the factor would be infinite.
float inverse_scale(float largest) {
  const float inverse = 127.0f / largest;
  return inverse < std::numeric_limits<float>::infinity() ? inverse : 0.0f;
}

// Writes round(x / scale) for one group; out has room for `count` rounded up to 8 columns. If the input has a value that is not finite,
// the scale is NaN and the rounded values are zero: no integers could represent them, and their sums could overflow.
template <class Value>
Group quantize_group(const float* x, int count, Value* out) {
  const float largest = magnitude(x, count), inverse = inverse_scale(largest);
  const int padded = (count + 7) / 8 * 8;
  if (std::isnan(largest)) {
    std::fill_n(out, padded, Value{});
    return {largest, 0.0f};
  }
  Ints sum{};
  int k = 0;
  for (; k + 2 * kWidth <= count; k += 2 * kWidth) {
    const Ints first = round_to_ints(load(x + k) * inverse), second = round_to_ints(load(x + k + kWidth) * inverse);
    sum += first + second;
    store_rounded(out + k, first, second);
  }
  for (; k + kWidth <= count; k += kWidth) {
    const Ints q = round_to_ints(load(x + k) * inverse);
    sum += q;
    store_rounded(out + k, q);
  }
  int32_t total = reduce(sum, [](auto a, auto b) { return a + b; });
  for (; k < padded; ++k) {
    const int q = k < count ? int(std::nearbyint(x[k] * inverse)) : 0;
    total += q;
    out[sizeof(Value) == 1 ? k : k / 4 * 4 + kWordOrder[k % 4]] = Value(q);
  }
  return {largest / 127.0f, float(total)};
}

// Adds the squares of one group's values in `form`, and the squares of their rounding errors, which are 0 if `form` is rounded this way.
void add_squares(const float* x, int count, Form form, Floats& whole, Floats& lost) {
  const float largest = magnitude(x, count), scale = largest / 127.0f, inverse = inverse_scale(largest);
  const auto add = [&](Floats v) {
    const Floats rounded = to_floats(round_to_ints(v * inverse)) * scale;
    if (form == Form::kBf16) v = bf16_to_floats(floats_to_bf16(v));
    else if (form != Form::kF32) v = rounded;
    const Floats rest = v - rounded;
    whole += v * v;
    lost += rest * rest;
  };
  int k = 0;
  for (; k + kWidth <= count; k += kWidth) add(load(x + k));
  if (k == count) return;
  float last[kWidth] = {};
  std::copy(x + k, x + count, last);
  add(load(last));
}

// The greatest sums of any sub-group: of its positive or its negative values, as in Prepared::sum, and with VNNI of magnitudes.
struct Most {
  int of_sign, of_magnitudes;
};

// The sums of sub-groups.
template <class Value>
Most sum_sub_groups(const Value* q, int size, int count, int16_t* sums) {
  Most most{};
  for (int i = 0; i < count; ++i, q += size) {
    int sum = 0, magnitudes = 0;
    for (int k = 0; k < size; ++k) {
      sum += q[k];
      if constexpr (APPL_VNNI) magnitudes += std::abs(q[k]);
    }
    sums[i] = int16_t(sum);
    most.of_sign = std::max(most.of_sign, (magnitudes + std::abs(sum)) / 2);
    most.of_magnitudes = std::max(most.of_magnitudes, magnitudes);
  }
  return most;
}

#if APPL_WIDTH == 8 && !APPL_VNNI
// The same with the two sums of a lane separate: the first two and the last two of every four columns. Sub-groups have 16 or 32 columns.
Most sum_sub_groups(const int8_t* q, int size, int count, int16_t* sums) {
  const __m128i ones = _mm_set1_epi8(1);
  const auto fold = [](__m128i words) {  // eight to two
    words = _mm_add_epi16(words, _mm_shuffle_epi32(words, 0x4e));
    return _mm_add_epi16(words, _mm_shuffle_epi32(words, 0xb1));
  };
  __m128i most{};
  for (int i = 0; i < count; ++i, q += size) {
    __m128i sum{}, magnitudes{};
    for (int k = 0; k < size; k += 16) {
      const __m128i values = load<__m128i>(q + k);
      sum = _mm_add_epi16(sum, _mm_maddubs_epi16(ones, values));
      magnitudes = _mm_add_epi16(magnitudes, _mm_maddubs_epi16(_mm_abs_epi8(values), ones));
    }
    sum = fold(sum);
    const uint32_t both = uint32_t(_mm_cvtsi128_si32(sum));
    sums[i] = int16_t(both + (both >> 16));
    most = _mm_max_epi16(most, _mm_add_epi16(fold(magnitudes), _mm_abs_epi16(sum)));
  }
  const uint32_t both = uint32_t(_mm_cvtsi128_si32(most));
  return {std::max(int(both & 0xffffu), int(both >> 16)) / 2, 0};
}
#endif

#if APPL_WIDTH == 8
// The sum in Prepared::neighbours.
int32_t sum_neighbours(const int16_t* q, int count) {
  __m128i sum{};
  for (int k = 0; k < count; k += 8) {
    const __m128i values = load<__m128i>(q + k);  // columns 0, 2, 1, 3 and so on
    sum = _mm_add_epi32(sum, _mm_madd_epi16(values, _mm_shuffle_epi32(values, 0xb1)));
  }
  return -(_mm_cvtsi128_si32(sum) + _mm_extract_epi32(sum, 2));
}
#endif

template <class Value>
void quantize_columns(const Prepared& p, const float* x, int row, int first, int count, Value* q) {
  const PreparedShape& shape = p.shape;
  const int parts = shape.num_sub_groups(), size = shape.group_size;
  size_t at = size_t(first / size) * p.side_stride + size_t(row);
  for (int done = 0; done < count; done += size, at += p.side_stride) {
    const Group result = quantize_group(x + done, std::min(size, count - done), q + done);
    const Most most = sum_sub_groups(q + done, shape.sub_group_size, parts, p.sub_sum + at * size_t(parts));
    if constexpr (has_neighbours(sizeof(Value) == 2 ? Form::kInt16 : Form::kInt8))
      p.neighbours[at] = sum_neighbours(q + done, std::min(size, count - done));
    p.scale[at] = result.scale;
    p.sum[at] = parts > 0 ? float(most.of_sign) : result.sum;
    p.scaled_sum[at] = parts > 0 ? float(most.of_magnitudes) : result.sum * result.scale;
  }
}

}  // namespace

Prepared prepared_at(const PreparedShape& shape, int rows, uint8_t* memory) {
  Prepared p;
  p.shape = shape;
  p.rows = p.block_rows = rows;
  p.data = memory;
  p.side_stride = PreparedShape::side_stride(rows);
  const size_t side = size_t(shape.num_groups()) * p.side_stride;
  p.scale = reinterpret_cast<float*>(memory + size_t(rows) * size_t(shape.num_blocks()) * kRowBytes);
  p.scaled_sum = p.scale + side;
  p.sum = p.scaled_sum + side;
  p.neighbours = reinterpret_cast<int32_t*>(p.sum + side);
  p.sub_sum = reinterpret_cast<int16_t*>(p.neighbours + (has_neighbours(shape.form) ? side : 0));
  return p;
}

Prepared rows_of(const Prepared& prepared, int first, int count) {
  Prepared some = prepared;
  some.rows = count;
  some.data += size_t(first) * kRowBytes;
  some.scale += first;
  some.sum += first;
  some.scaled_sum += first;
  some.neighbours += first;
  some.sub_sum += size_t(first) * size_t(prepared.shape.num_sub_groups());
  return some;
}

void prepare_columns(const Prepared& p, const float* x, int row, int first, int count) {
  const Form form = p.shape.form;
  const int per_block = block_columns(form), begin = first % per_block * column_bytes(form);
  uint8_t* const block = p.data + (size_t(first / per_block) * size_t(p.block_rows) + size_t(row)) * kRowBytes;
  uint8_t* const to = block + begin;
  if (form == Form::kInt8) return quantize_columns(p, x, row, first, count, reinterpret_cast<int8_t*>(to));
  if (form == Form::kInt16) return quantize_columns(p, x, row, first, count, reinterpret_cast<int16_t*>(to));
  if (form == Form::kBf16) map(reinterpret_cast<uint16_t*>(to), count, [](Floats v) { return v; }, x);
  else std::memcpy(to, x, size_t(count) * sizeof(float));
  const size_t end = size_t(begin + count * column_bytes(form));
  if (first + count == p.shape.columns) std::memset(block + end, 0, kRowBytes - end);
}

RowNorms row_norms(const PreparedShape& shape, Form form, const float* x) {
  Floats whole{}, lost{};
  for (int first = 0; first < shape.columns; first += shape.group_size) {
    add_squares(x + first, std::min(shape.group_size, shape.columns - first), form, whole, lost);
  }
  return {std::sqrt(reduce_add(whole)), std::sqrt(reduce_add(lost))};
}

void copy_row(const Prepared& from, int row, const Prepared& to, int to_row) {
  const PreparedShape& shape = from.shape;
  for (int block = 0; block < shape.num_blocks(); ++block) {
    const size_t at = size_t(block) * size_t(to.block_rows) + size_t(to_row);
    std::memcpy(to.data + at * kRowBytes, from.block(block) + size_t(row) * kRowBytes, kRowBytes);
  }
  const size_t parts = size_t(shape.num_sub_groups());
  for (size_t group = 0; group < size_t(shape.num_groups()); ++group) {
    const size_t at = group * from.side_stride + size_t(row), to_at = group * to.side_stride + size_t(to_row);
    to.scale[to_at] = from.scale[at];
    to.sum[to_at] = from.sum[at];
    to.scaled_sum[to_at] = from.scaled_sum[at];
    if (has_neighbours(shape.form)) to.neighbours[to_at] = from.neighbours[at];
    std::copy_n(from.sub_sum + at * parts, parts, to.sub_sum + to_at * parts);
  }
}

void prepare_row(const Prepared& p, const float* x, int row) {
  const int columns = p.shape.columns, per_block = block_columns(p.shape.form);
  for (int first = 0; first < columns; first += per_block) {
    prepare_columns(p, x + first, row, first, std::min(per_block, columns - first));
  }
}

}  // namespace appl
