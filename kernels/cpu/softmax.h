// Rows of scores that become probabilities, a vector at a time.
#pragma once

#include "activation.h"
#include "attention_state.h"

namespace appl {

// Where a row's probabilities go, and how well they are computed for that.
struct FloatProbabilities {
  float* row;
  static Floats exp2(Floats x) { return vexp2<5>(x); }
  void put(int i, Floats p) const { appl::put(row + i, p); }
};
struct Bf16Probabilities {
  uint16_t* row;
  static Floats exp2(Floats x) { return vexp2<3>(x); }
  void put(int i, Floats p) const { appl::put(row + i, p); }
};

template <class Out>
inline void put_zeros(int begin, int end, const Out& out) {
  for (int i = begin; i < end; i += kWidth) out.put(i, Floats{});
}

// Of a vector of scores those in [first, end), without a branch that could not be foreseen; the others become minus infinity.
inline void keep_lanes(float* s, int first, int end) {
  Ints lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  const Ints keeps = Ints(lane >= first) & Ints(lane < end);
  store(s, keeps != 0 ? load(s) : splat(kMinusInfinity));
}

// f(i) for each vector, four at a time: one after the other they would wait for each other's latencies.
template <class F>
inline void for_vectors(int low, int high, F&& f) {
  int i = low;
  for (; i + 4 * kWidth <= high; i += 4 * kWidth) {
#pragma GCC unroll 4
    for (int j = 0; j < 4 * kWidth; j += kWidth) f(i + j);
  }
  for (; i < high; i += kWidth) f(i);
}

}  // namespace appl
