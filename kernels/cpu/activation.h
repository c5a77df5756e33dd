// The activation functions on vectors, chosen once per row.
#pragma once

#include "appliance_abi.h"
#include "simd.h"

namespace appl {

inline Floats silu(Floats x) { return x * vsigmoid(x); }
inline Floats gelu(Floats x) { return 0.5f * x * (1.0f + verf(x * 0.70710678118654752f)); }
inline Floats gelu_tanh(Floats x) { return 0.5f * x * (1.0f + vtanh(0.79788456080286536f * (x + 0.044715f * x * x * x))); }
inline Floats relu(Floats x) { return x > 0.0f ? x : Floats{}; }
inline Floats relu2(Floats x) { return relu(x) * relu(x); }

// log(1 + e^x) to a few ulp, also where it is small: log(1 + y) = 2 artanh(y / (2 + y)) for y = e^-|x|, as a series.
inline Floats softplus(Floats x) {
  const Floats y = vexp(-vabs(x)), z = y / (2.0f + y), square = z * z;
  Floats p = splat(1.0f / 15.0f);
  p = p * square + 1.0f / 13.0f;
  p = p * square + 1.0f / 11.0f;
  p = p * square + 1.0f / 9.0f;
  p = p * square + 1.0f / 7.0f;
  p = p * square + 1.0f / 5.0f;
  p = p * square + 1.0f / 3.0f;
  p = p * square + 1.0f;
  return relu(x) + 2.0f * z * p;
}

// The function of APPL_ACTIVATION_XIELU, whose parameters are those of appl_pointwise.
class Xielu {
 public:
  explicit Xielu(const float* parameters)
      : above_(softplus(splat(parameters[0]))), below_(parameters[2] + softplus(splat(parameters[1]))), beta_(splat(parameters[2])),
        eps_(splat(parameters[3])) {}

  Floats operator()(Floats x) const {
    const Floats below = below_ * (vexp(vmin(x, eps_)) - 1.0f - x), above = above_ * x * x;
    return (x > 0.0f ? above : below) + beta_ * x;
  }

 private:
  const Floats above_, below_, beta_, eps_;
};

// Calls body(f) with the function of `kind`, so that the loop in `body` is compiled for each.
template <class Body>
inline void with_activation(int32_t kind, Body&& body) {
  switch (kind) {
    case APPL_ACTIVATION_SILU: return body([](Floats x) { return silu(x); });
    case APPL_ACTIVATION_GELU: return body([](Floats x) { return gelu(x); });
    case APPL_ACTIVATION_GELU_TANH: return body([](Floats x) { return gelu_tanh(x); });
    case APPL_ACTIVATION_RELU: return body([](Floats x) { return relu(x); });
    case APPL_ACTIVATION_RELU2: return body([](Floats x) { return relu2(x); });
    case APPL_ACTIVATION_SIGMOID: return body([](Floats x) { return vsigmoid(x); });
    default: return body([](Floats x) { return x; });
  }
}

inline void put(float* out, Floats v) { store(out, v); }
inline void put(uint16_t* out, Floats v) { store(out, floats_to_bf16(v)); }

// Applies f(vector...) to `count` floats; the last ones go through padded vectors. The result is f32, or bf16 as words.
template <class To, class F, class... Inputs>
inline void map(To* out, int count, F&& f, const Inputs*... inputs) {
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) put(out + i, f(load(inputs + i)...));
  if (i == count) return;
  const size_t rest = size_t(count - i) * sizeof(float);
  auto load_rest = [&](const float* from) {
    Floats v{};
    std::memcpy(&v, from + i, rest);
    return v;
  };
  To result[kWidth];
  put(result, f(load_rest(inputs)...));
  std::memcpy(out + i, result, size_t(count - i) * sizeof(To));
}

}  // namespace appl
