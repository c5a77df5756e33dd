// The Hadamard transform: sums and differences of the numbers of a block, so that a few large ones are spread over all.
#pragma once

#include "simd.h"

namespace appl {

constexpr int kMostTurned = 64;  // columns of a block at most

// The columns of a block: the largest power of two that divides a row's columns, up to kMostTurned.
constexpr int turned_block(int columns) { return (columns & -columns) < kMostTurned ? columns & -columns : kMostTurned; }

// Replaces a lane and the one `Distance` above it by their sum and their difference.
template <int Distance>
inline Floats add_and_subtract(Floats v) {
  Ints order;
  Words sign;
  for (int i = 0; i < kWidth; ++i) {
    order[i] = i ^ Distance;
    sign[i] = (i & Distance) != 0 ? 0x80000000u : 0;
  }
  return __builtin_shuffle(v, order) + bit_cast<Floats>(bit_cast<Words>(v) ^ sign);
}

template <int Distance = 1>
inline Floats turn_lanes(Floats v, int block) {
  if constexpr (Distance < kWidth) {
    if (Distance < block) return turn_lanes<2 * Distance>(add_and_subtract<Distance>(v), block);
  }
  return v;
}

// Transforms `count` floats in blocks, which are not scaled: twice gives `block` times the floats. count: a multiple of whole vectors and
// of blocks.
inline void turn(float* x, int count, int block) {
  for (int i = 0; i < count; i += kWidth) store(x + i, turn_lanes(load(x + i), block));
  for (int distance = kWidth; distance < block; distance *= 2) {
    for (int start = 0; start < count; start += 2 * distance) {
      for (int i = start; i < start + distance; i += kWidth) {
        const Floats a = load(x + i), b = load(x + i + distance);
        store(x + i, a + b);
        store(x + i + distance, a - b);
      }
    }
  }
}

}  // namespace appl
