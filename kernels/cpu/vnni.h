// The VNNI operations of integer tiles. Instructions are spelled out as in multiply_add in simd.h: the sums of a tile take nearly all
// registers, and the compiler by itself would spill them.
#pragma once

#include "tile.h"

#if APPL_VNNI

namespace appl {

#if defined(APPL_EMULATE_AVX512)

inline Ints add_byte_dots(Ints sum, Words w, Words x) {
  return bit_cast<Ints>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sum), bit_cast<__m512i>(w), bit_cast<__m512i>(x)));
}
inline Ints load_splat(const int32_t* x) { return splat_int(*x); }
inline void add_scaled(Floats& c, Ints sum, Floats x, Floats w) { c = multiply_add(c, to_floats(sum) * x, w); }

#else

// sum + a * b of unsigned and signed bytes, in fours.
inline Ints add_byte_dots(Ints sum, Words a, Words b) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
  return sum;
}

// Loads each value separately; the compiler would load a vector and shuffle it.
inline Ints load_splat(const int32_t* x) {
  Ints result;
  asm("vpbroadcastd %1, %0" : "=v"(result) : "m"(*x));
  return result;
}

// c += f32(sum) * x * w, with c in memory.
inline void add_scaled(Floats& c, Ints sum, Floats x, Floats w) {
  asm("vcvtdq2ps %[sum], %[sum]\n\t"
      "vmulps %[x], %[sum], %[sum]\n\t"
      "vfmadd213ps %[c], %[w], %[sum]\n\t"
      "vmovaps %[sum], %[c]"
      : [sum] "+v"(sum), [c] "+m"(c)
      : [x] "v"(x), [w] "v"(w));
}

#endif

}  // namespace appl

#endif
