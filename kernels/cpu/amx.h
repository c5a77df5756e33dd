// The instructions of AMX, with registers as template arguments. A register is up to 16 rows of up to 64 bytes.
#pragma once

#include <cstddef>
#include <cstdint>

namespace amx {

constexpr int kRegisters = 8, kRows = 16, kRowBytes = 64;

// Palette 1 of LDTILECFG. Loading it clears the registers.
struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int index, int num_rows, int bytes) {
    rows[index] = uint8_t(num_rows);
    row_bytes[index] = uint16_t(bytes);
  }
};
static_assert(sizeof(Config) == 64);

}  // namespace amx

#if defined(APPL_EMULATE_AMX)
#include "emulated_amx.h"
#else

namespace amx {

inline void configure(const Config& config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
inline void release() { asm volatile("tilerelease"); }

template <int T>
inline void zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(T));
}

template <int T>
inline void load(const void* from, size_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(T) : "memory");
}

template <int T>
inline void store(void* to, size_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(T) : "memory");
}

// C += A * B on pairs of bf16: in A the pairs of a row are adjacent, in B the columns of a pair.
template <int C, int A, int B>
inline void multiply_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

// C += A * B on groups of four bytes, signed in A and unsigned in B, added in 32 bits.
template <int C, int A, int B>
inline void multiply_bytes() {
  asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(C), "i"(A), "i"(B));
}

}  // namespace amx
#endif
