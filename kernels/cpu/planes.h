// Weights of five and six bits: the low four bits of each are nibbles as in int4, the high bits are in a plane.
//
// A unit of columns is [1 + kLines][16][4] bytes: a line of high bits, then lines of nibbles of eight columns each. Step s has columns
// 4 s to 4 s + 3. Byte j of a lane's plane holds, from bit s * kHigh on, the high bits of column 4 s + j.
#pragma once

#include <cstdint>

#include "simd.h"

namespace appl {

template <int Bits>
struct Planes {
  static constexpr int kHigh = Bits - 4;
  static constexpr uint32_t kHighMask = 0x01010101u * (((1u << kHigh) - 1) << 4);
  static constexpr int kColumns = 32 / kHigh, kSteps = kColumns / 4, kLines = kSteps / 2;
  static constexpr int kLineBytes = kPanel * 4, kUnitBytes = (1 + kLines) * kLineBytes;

  // The bytes of step `s` from the plane and the nibbles of its line, as vectors or words.
  template <class V>
  static V get(V plane, V nibbles, int s) {
    const int shift = 4 - kHigh * s;
    const V low = (s % 2 == 0 ? nibbles : nibbles >> 4) & 0x0f0f0f0fu;
    return low | ((shift >= 0 ? plane << (shift & 31) : plane >> (-shift & 31)) & kHighMask);
  }

  // One code of a panel's row: `unit` is the address of the row's lane in the unit that holds the column.
  static int code(const uint8_t* unit, int column) {
    const int s = column / 4, j = column % 4;
    const int low = unit[(1 + s / 2) * kLineBytes + j] >> (s % 2 * 4) & 15;
    return low | ((unit[j] >> (kHigh * s)) & ((1 << kHigh) - 1)) << 4;
  }

  // The reverse of `code` for a whole unit of one row; codes are below 1 << Bits.
  static void put(const uint8_t* codes, uint8_t* unit) {
    for (int column = 0; column < kColumns; ++column) {
      const int s = column / 4, j = column % 4;
      unit[(1 + s / 2) * kLineBytes + j] |= uint8_t((codes[column] & 15) << (s % 2 * 4));
      unit[j] |= uint8_t((codes[column] >> 4 & ((1 << kHigh) - 1)) << (kHigh * s));
    }
  }
};

}  // namespace appl
