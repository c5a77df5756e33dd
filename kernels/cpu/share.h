// A thread's remaining work, with which others may help.
#pragma once

#include <atomic>
#include <cstdint>

namespace appl {

// Consecutive items. Their owner takes them from the front, helpers from the back. Counts fit 32 bits.
class alignas(64) Share {
 public:
  void set(int64_t begin, int64_t end) { left_.store(pack(uint64_t(begin), uint64_t(end)), std::memory_order_relaxed); }

  // False when nothing is left.
  bool take_first(int64_t& index) {
    return take([&](uint64_t first, uint64_t end) {
      index = int64_t(first);
      return pack(first + 1, end);
    });
  }
  bool take_last(int64_t& index) {
    return take([&](uint64_t first, uint64_t end) {
      index = int64_t(end) - 1;
      return pack(first, end - 1);
    });
  }

 private:
  static constexpr uint64_t pack(uint64_t first, uint64_t end) { return end << 32 | first; }

  template <class Rest>
  bool take(Rest&& rest_of) {
    uint64_t left = left_.load(std::memory_order_relaxed), rest;
    do {
      const uint64_t first = left & UINT32_MAX, end = left >> 32;
      if (first >= end) return false;
      rest = rest_of(first, end);
    } while (!left_.compare_exchange_weak(left, rest, std::memory_order_relaxed));
    return true;
  }

  std::atomic<uint64_t> left_{0};  // the first in the lower half, the end in the upper
};

}  // namespace appl
