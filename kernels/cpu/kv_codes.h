// The codes of a cache of eight bits: int8, e4m3 and e5m2. A key or a value is its code times a scale, which the numbers of a token and
// head share.
//
// Keys of int8 are turned (hadamard.h) before they are rounded, as are the queries that meet them: their few large columns would
// make the steps of all others too wide. Floats of eight bits have no subnormal codes here: multiplying them would take assistance.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "appliance_abi.h"
#include "code_book.h"
#include "hadamard.h"
#include "simd.h"

namespace appl {

constexpr bool is_code_layout(appl_layout layout) { return layout == APPL_INT8 || layout == APPL_F8 || layout == APPL_E5M2; }

constexpr float kMostInCode = 0x1p60f;  // larger magnitudes are stored as this, so that no scale overflows
constexpr float kLeastScale = 1e-30f;   // its inverse is finite; appliance.kernels.reference.kv_codes has the same

// The largest number of a code.
constexpr float largest_code(appl_layout layout) { return layout == APPL_INT8 ? 127.0f : layout == APPL_F8 ? 448.0f : 57344.0f; }

// Tiles read floats of eight bits as f32 with an exponent that is too small (tile_dense.cpp): by a power of two that has this root. Both
// factors of a product carry it, and so does what the product is divided by.
constexpr float root_of_unit(appl_layout layout) { return layout == APPL_F8 ? 0x1p60f : layout == APPL_E5M2 ? 0x1p56f : 1.0f; }

// The columns of a block in which keys and queries are turned; 1 if they are not.
constexpr int turned_keys(appl_layout layout, int key_dim) { return layout == APPL_INT8 ? turned_block(key_dim) : 1; }

// A float of eight bits, rounded to nearest even; |x| is at most the largest one. Below the least normal one it is that or zero.
template <int MantissaBits, int Bias>
inline Octets small_float_of(Floats x) {
  constexpr int kShift = 23 - MantissaBits;
  constexpr float kLeastNormal = __builtin_bit_cast(float, uint32_t(128 - Bias) << 23);
  const Floats magnitude = vabs(x);
  const Words bits = bit_cast<Words>(vmax(magnitude, splat(kLeastNormal))), sign = bit_cast<Words>(x) >> 24 & 0x80u;
  const Words code = ((bits + ((1u << (kShift - 1)) - 1) + (bits >> kShift & 1)) >> kShift) - (uint32_t(127 - Bias) << MantissaBits);
  return __builtin_convertvector((code & Words(magnitude > splat(kLeastNormal / 2))) | sign, Octets);
}

// The codes of numbers whose magnitude is at most the largest of the layout.
template <appl_layout Layout>
inline Octets code_of(Floats x) {
  if constexpr (Layout == APPL_INT8) return __builtin_convertvector(bit_cast<Words>(round_to_ints(x)), Octets);
  else if constexpr (Layout == APPL_F8) return small_float_of<3, 7>(x);
  else return small_float_of<2, 15>(x);
}

}  // namespace appl
