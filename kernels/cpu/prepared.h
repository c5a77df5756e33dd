// The input of a Linear in the form that its kernel reads: blocks of columns, each with all rows at a stride of 1 KiB.
#pragma once

#include <cstddef>
#include <cstdint>

#include "pool.h"
#include "simd.h"

namespace appl {

enum class Form {
  kF32,   // 256 columns per block
  kBf16,  // 512
  kInt8,  // 1024 signed bytes
  kInt16  // 512 signed words; each four columns are in the order 0, 2, 1, 3
};

constexpr size_t kRowBytes = 1024;                                 // of a row in a block
constexpr int kMinActivationGroup = 8, kMaxActivationGroup = 256;  // columns that share a scale

constexpr int block_columns(Form form) { return form == Form::kF32 ? 256 : form == Form::kInt8 ? 1024 : 512; }
constexpr int column_bytes(Form form) { return int(kRowBytes) / block_columns(form); }

using WordRow = int16_t __attribute__((vector_size(kWidth * 2)));
// The order of columns in Form::kInt16.
#if APPL_WIDTH == 16
constexpr WordRow kWordOrder{0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
#elif APPL_WIDTH == 8
constexpr WordRow kWordOrder{0, 2, 1, 3, 4, 6, 5, 7};
#else
constexpr WordRow kWordOrder{0, 2, 1, 3};
#endif
inline void store_words(int16_t* out, Ints q) { store(out, __builtin_shuffle(__builtin_convertvector(q, WordRow), kWordOrder)); }

// Whether tiles replace half of their products by additions (tall_words.cpp).
constexpr bool has_neighbours(Form form) { return kWidth == 8 && form == Form::kInt16; }

struct PreparedShape {
  Form form;
  int columns;             // of the input
  int group_size;          // columns per int8 scale; 0 for float forms
  int sub_group_size = 0;  // columns per sub-group of the weight: each has a sum of its own
  bool operator==(const PreparedShape&) const = default;

  int num_blocks() const { return (columns + block_columns(form) - 1) / block_columns(form); }
  int num_groups() const { return group_size == 0 ? 0 : (columns + group_size - 1) / group_size; }
  int num_sub_groups() const { return sub_group_size == 0 ? 0 : group_size / sub_group_size; }  // of a group
  // The bytes for `rows` rows: the blocks, then scales, scaled sums, sums and neighbours, each [group][side_stride(rows)], sums of
  // sub-groups, and room for a vector.
  size_t bytes(int rows) const {
    const size_t sides = has_neighbours(form) ? 4 : 3;
    const size_t group_bytes = sides * sizeof(float) + size_t(num_sub_groups()) * sizeof(int16_t);
    return size_t(rows) * size_t(num_blocks()) * kRowBytes + side_stride(rows) * size_t(num_groups()) * group_bytes + 64;
  }

  // The rows from one group's scales to the next group's. For many rows it is an odd number of lines, because lines that are whole pages
  // apart evict each other from the caches.
  static constexpr size_t side_stride(int rows) {
    constexpr size_t kLineRows = 64 / sizeof(float);
    const size_t count = size_t(rows);
    return count <= kLineRows ? count : ((count + kLineRows - 1) / kLineRows | 1) * kLineRows;
  }
};

struct Prepared {
  PreparedShape shape;
  int rows = 0;
  int block_rows = 0;       // of a block: more than there are where these are some of a block's
  uint8_t* data = nullptr;  // [block][row][kRowBytes]; columns past the end are zero
  size_t side_stride = 0;   // from group to group, for the arrays below
  float* scale = nullptr;   // [group][row]: largest magnitude / 127; NaN if the input has a value that is not finite
  // [group][row]: the sum of the rounded values; or, for sub-groups and tall tiles, the greatest 16-bit sum of the positive or the negative
  // values of any sub-group.
  float* sum = nullptr;
  // sum * scale; or, for sub-groups with VNNI, the greatest sum of magnitudes of a sub-group.
  float* scaled_sum = nullptr;
  // [group][row], if has_neighbours: minus the sum of the products of columns 0 and 1, 2 and 3 and so on.
  int32_t* neighbours = nullptr;
  int16_t* sub_sum = nullptr;  // [group][row][sub-group]

  const uint8_t* block(int index) const { return data + size_t(index) * size_t(block_rows) * kRowBytes; }
};

// Lays out `rows` rows in `memory`, which has shape.bytes(rows) bytes.
Prepared prepared_at(const PreparedShape& shape, int rows, uint8_t* memory);

// Some neighbours of its rows.
Prepared rows_of(const Prepared& prepared, int first, int count);

// Converts a row of shape.columns floats.
void prepare_row(const Prepared& prepared, const float* x, int row);

// Converts `count` floats of a row: its columns from `first` on, which must be whole groups in one block.
void prepare_columns(const Prepared& prepared, const float* x, int row, int first, int count);

// Copies a row of `from` to a row of `to`; both have the same shape.
void copy_row(const Prepared& from, int row, const Prepared& to, int to_row);

// The Euclidean norms of a row of shape.columns floats in `form`, and of its rounding errors to int8.
struct RowNorms {
  float whole, lost;
};
RowNorms row_norms(const PreparedShape& shape, Form form, const float* x);

// Converts the rows that row_of(row, thread) returns: each is read before the next call.
template <class RowOf>
Prepared prepare(appl_pool& pool, const PreparedShape& shape, int rows, uint8_t* memory, RowOf&& row_of) {
  const Prepared prepared = prepared_at(shape, rows, memory);
  constexpr int kWorth = 2;  // the cost of a conversion in plain elements
  parallel_for(pool, rows, int64_t{kWorth} * shape.columns, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) prepare_row(prepared, row_of(row, thread), int(row));
  });
  return prepared;
}

}  // namespace appl
