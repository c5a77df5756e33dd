// The instructions of amx.h in plain C++: a test-only build runs the logic of its callers on machines without them.
// Semantics follow the instruction set reference; a shape for which an instruction would fault ends the program. Only amx.h includes this.
#pragma once

#include <cstdlib>
#include <cstring>

namespace amx {

struct Register {
  uint8_t byte[kRows][kRowBytes];
};
inline thread_local Config current{};
inline thread_local Register registers[kRegisters];

inline void demand(bool holds) {
  if (!holds) std::abort();
}

inline void configure(const Config& config) {
  for (int i = 0; i < kRegisters; ++i) demand(config.rows[i] <= kRows && config.row_bytes[i] <= kRowBytes);
  current = config;
  std::memset(registers, 0, sizeof(registers));
}
inline void release() { current = {0}; }

template <int T>
inline void zero() {
  demand(current.palette == 1 && current.rows[T] > 0);
  std::memset(&registers[T], 0, sizeof(Register));
}

template <int T>
inline void load(const void* from, size_t stride) {
  zero<T>();
  for (int i = 0; i < current.rows[T]; ++i) {
    std::memcpy(registers[T].byte[i], static_cast<const uint8_t*>(from) + size_t(i) * stride, current.row_bytes[T]);
  }
}

template <int T>
inline void store(void* to, size_t stride) {
  demand(current.palette == 1 && current.rows[T] > 0);
  for (int i = 0; i < current.rows[T]; ++i) {
    std::memcpy(static_cast<uint8_t*>(to) + size_t(i) * stride, registers[T].byte[i], current.row_bytes[T]);
  }
}

// C[m][n] = product(C[m][n], four bytes of A, four bytes of B) for all groups of four bytes.
template <int C, int A, int B, class Value, class Product>
inline void multiply(Product product) {
  demand(current.palette == 1 && current.rows[C] == current.rows[A] && current.row_bytes[C] == current.row_bytes[B] &&
         current.row_bytes[A] == 4 * current.rows[B]);
  for (int m = 0; m < current.rows[C]; ++m) {
    for (int k = 0; k < current.rows[B]; ++k) {
      for (int n = 0; n < current.row_bytes[C] / 4; ++n) {
        Value sum;
        std::memcpy(&sum, registers[C].byte[m] + 4 * n, 4);
        sum = product(sum, registers[A].byte[m] + 4 * k, registers[B].byte[k] + 4 * n);
        std::memcpy(registers[C].byte[m] + 4 * n, &sum, 4);
      }
    }
  }
}

template <int C, int A, int B>
inline void multiply_bf16() {
  multiply<C, A, B, float>([](float sum, const uint8_t* a, const uint8_t* b) {
    const auto value = [](const uint8_t* at) {
      const uint32_t bits = uint32_t{at[0]} << 16 | uint32_t{at[1]} << 24;
      float result;
      std::memcpy(&result, &bits, 4);
      return result;
    };
    return sum + value(a) * value(b) + value(a + 2) * value(b + 2);
  });
}

template <int C, int A, int B>
inline void multiply_bytes() {
  multiply<C, A, B, int32_t>([](int32_t sum, const uint8_t* a, const uint8_t* b) {
    for (int i = 0; i < 4; ++i) sum += int32_t{int8_t(a[i])} * int32_t{b[i]};
    return sum;
  });
}

}  // namespace amx
