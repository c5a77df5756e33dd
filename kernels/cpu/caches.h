// Properties of this machine's caches.
#pragma once

#include <cstddef>
#include <unistd.h>

namespace appl {

constexpr size_t kLine = 64;

// The first level has less than 48 KiB (AMD before Zen 5) or is unknown: two panels of 1,024 bytes per row would fill it. On Zen 4 it
// also has too few outstanding misses to read memory at full speed, while the second level has enough.
inline bool has_small_first_level() {
  constexpr long kRoomyBytes = 48 << 10;
  static const bool is_small = sysconf(_SC_LEVEL1_DCACHE_SIZE) < kRoomyBytes;
  return is_small;
}

// The first level of Intel's cores has 10 to 16 outstanding misses, and the second level 48.
inline bool is_intel() {
#if defined(__x86_64__)
  static const bool is = __builtin_cpu_is("intel");
  return is;
#else
  return false;
#endif
}

// Whether data that is read at the speed of memory is prefetched into the second level.
inline bool asks_second_level() { return has_small_first_level() || is_intel(); }

}  // namespace appl
