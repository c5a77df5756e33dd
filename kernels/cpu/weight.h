// Packed weights. One layout for each weight type serves every batch size and every level.
//
// Sixteen rows are a panel. Inside a panel the columns follow each other, each with its sixteen rows:
//   f32, f16   [K][16]
//   bf16       [K / 2][16][2]             pairs, for vdpbf16ps; elsewhere a shift and a mask widen them
//   int8       [K / G]( header, [G / 4][16][4] )   bytes q + 128
//   int4       [K / G]( header, [G / 8][16][4] )   low nibble: columns 0..3 of eight, high nibble: columns 4..7
//   int5       [K / G]( header, [G / 32][5][16][4] )   a line of fifth bits, then nibbles as in int4; see planes.h
//   int6       [K / G]( header, [G / 16][3][16][4] )   a line of fifth and sixth bits, then nibbles
//   f8         [K / G]( header, [G / 2][16][2] )   the codes
//   e2m1, nf4, fp4, iq4_nl   as int4; a nibble is the place of a value in the layout's book
// A header has the sixteen scales of the group, then the sixteen offsets if they are stored; if a group has sub-groups, their
// int8 factors follow, [sub-groups / 2][16][2], and those of the offsets. K is padded with zeros
// to a multiple of 2 (bf16) or 8 (per-channel int8, int4), N to a multiple of 16.
#pragma once

#include <cstdint>

#include "appliance_abi.h"
#include "code_book.h"
#include "pool.h"
#include "simd.h"

struct appl_weight {
  appl_layout layout;
  int rows;
  int columns;
  int padded_columns;
  int num_panels;
  size_t panel_bytes;

  // For quantized layouts only. An element is (q - zero_point) * scale, plus the offset if it is stored; if groups have sub-groups,
  // scale and offset are each multiplied with the sub-group's factor.
  int group_size = 0;  // in padded columns
  int sub_group_size = 0;
  int num_groups = 0;
  int zero_point = 0;
  appl_scale scale_type = APPL_SCALE_F16;
  bool has_offset = false;
  size_t header_bytes = 0;
  size_t block_bytes = 0;  // of header and data of a group

  uint8_t* data = nullptr;  // in the pool's store, which frees it; or adopted, and then read-only

  size_t bytes() const { return panel_bytes * size_t(num_panels); }
  bool is_quantized() const { return layout >= APPL_INT8; }
  // Whether products with int8 inputs are exact: its codes are integers, or stand for some.
  bool has_integers() const { return (layout >= APPL_INT8 && layout <= APPL_INT6) || appl::is_integer_book(layout); }
  bool is_coded() const { return layout >= APPL_F8; }                                           // codes stand for floats
  int num_sub_groups() const { return sub_group_size == 0 ? 0 : group_size / sub_group_size; }  // of a group
  size_t sub_scale_at() const { return size_t{appl::kPanel} * appl::scale_bytes(scale_type) * (has_offset ? 2 : 1); }  // in a header
  size_t sub_offset_at() const { return sub_scale_at() + size_t{appl::kPanel} * size_t(num_sub_groups()); }
  const uint8_t* panel(int64_t index) const { return data + size_t(index) * panel_bytes; }
};

namespace appl {

appl_weight* pack(appl_pool& pool, const appl_matrix& matrix);

// Makes a weight of this form with zeroed panels; and packs some of its rows, [first_row, first_row + rows.rows).
appl_weight* reserve(appl_pool& pool, const appl_packed_form& form);
void fill(appl_weight& weight, int first_row, const appl_matrix& rows);

// The form in which `rows` alone would be packed, in a matrix of `num_rows` rows.
appl_packed_form form_of(const appl_matrix& rows, int num_rows);
appl_packed_form form_of(const appl_weight& weight);

// Makes a weight over panels that are packed already. They are borrowed.
appl_weight* adopt(const appl_packed_form& form, const void* data);

// A checksum that detects damaged bytes (but no deliberate change), at the speed of memory. Without a pool it runs on the calling
// thread.
uint64_t checksum(appl_pool* pool, const void* data, size_t bytes);

// Dequantizes row `row` into out[0 .. columns), times `scale`.
void gather_row(const appl_weight& weight, int row, float scale, float* out);

}  // namespace appl
