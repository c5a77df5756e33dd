#include "unpack.h"

#include <algorithm>

#include "planes.h"

namespace appl {
namespace {

constexpr int kLineBytes = kPanel * 4;

// Stores the bytes that value_of makes of four codes, each in a byte.
template <class Value>
void unpack_nibbles(const uint8_t* data, int columns, uint8_t* to, Value&& value_of) {
  for (int k = 0; k < columns; k += 8, data += kLineBytes, to += 2 * kLineBytes) {
    for (int v = 0; v < kPanelVectors; ++v) {
      const Words nibbles = load<Words>(data + v * kWidth * 4);
      store(to + v * kWidth * 4, value_of(nibbles & 0x0f0f0f0fu));
      store(to + kLineBytes + v * kWidth * 4, value_of(nibbles >> 4 & 0x0f0f0f0fu));
    }
  }
}

template <int Bits>
void unpack_planes(const uint8_t* data, int columns, uint8_t* to) {
  using P = Planes<Bits>;
  for (int k = 0; k < columns; k += P::kColumns, data += P::kUnitBytes, to += P::kColumns * kPanel) {
    for (int v = 0; v < kPanelVectors; ++v) {
      const uint8_t* at = data + v * kWidth * 4;
      const Words plane = load<Words>(at);
#pragma GCC unroll 8
      for (int s = 0; s < P::kSteps; ++s) {
        const Words nibbles = load<Words>(at + (1 + s / 2) * kLineBytes);
        store(to + s * kLineBytes + v * kWidth * 4, P::get(plane, nibbles, s));
      }
    }
  }
}

}  // namespace

void unpack_group(appl_layout layout, const uint8_t* data, int columns, uint8_t* to) {
  if (layout == APPL_INT5) return unpack_planes<5>(data, columns, to);
  if (layout == APPL_INT6) return unpack_planes<6>(data, columns, to);
  if (layout == APPL_E2M1) return unpack_nibbles(data, columns, to, look_up_bytes<APPL_E2M1>);
  if (layout == APPL_IQ4_NL) return unpack_nibbles(data, columns, to, look_up_bytes<APPL_IQ4_NL>);
  unpack_nibbles(data, columns, to, [](Words codes) { return codes; });
}

void unpack_columns(const appl_weight& w, const uint8_t* panel, int first, int columns, uint8_t* to) {
  for (int k = first; k < first + columns; k += w.group_size) {
    const uint8_t* block = panel + size_t(k / w.group_size) * w.block_bytes;
    const int count = std::min(w.group_size, first + columns - k);
    unpack_group(w.layout, block + w.header_bytes, count, to + size_t(k - first) * kPanel);
  }
}

}  // namespace appl
