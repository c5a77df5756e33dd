// Turns rows of scores into probabilities, a vector at a time.
#pragma once

#include "activation.h"
#include "attention_state.h"
#include "prepared.h"

namespace appl {

// The destination of a row's probabilities, and the precision that it needs.
template <int Degree>
struct FloatProbabilities {
  float* row;
  static Floats exp2(Floats x) { return vexp2<Degree>(x); }
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

// Rounds `count` floats, whole vectors of them, to words up to `most` in magnitude. Returns what the words are multiplied with to be the
// floats: it is NaN if one of these is not finite.
constexpr int kMostWord = 32767;
inline float put_words(const float* x, int count, int most, int16_t* words) {
  Floats magnitude{}, nothing{};
  for (int i = 0; i < count; i += kWidth) {
    const Floats v = load(x + i);
    magnitude = vmax(vabs(v), magnitude);
    nothing += v * 0.0f;  // unless it is not finite
  }
  constexpr float kLeast = 0x1p-100f;  // so that the inverse is finite
  const float largest = reduce_max(magnitude), inverse = largest > kLeast ? float(most) / largest : 0.0f;
  for (int i = 0; i < count; i += kWidth) store_words(words + i, round_to_ints(load(x + i) * inverse));
  return largest / float(most) + reduce_add(nothing);
}

// Keeps the scores of a vector in [first, end), without an unpredictable branch; the others become minus infinity.
inline void keep_lanes(float* s, int first, int end) {
  Ints lane;
  for (int i = 0; i < kWidth; ++i) lane[i] = i;
  const Ints keeps = Ints(lane >= first) & Ints(lane < end);
  store(s, keeps != 0 ? load(s) : splat(kMinusInfinity));
}

// Calls f(i) for each vector, four at a time: one by one, each would wait for the latency of the one before.
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
