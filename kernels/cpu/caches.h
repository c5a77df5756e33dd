// What is known of this machine's caches.
#pragma once

#include <cstddef>
#include <unistd.h>

namespace appl {

constexpr size_t kLine = 64;

// Of less than 48 KiB, as AMD's before Zen 5, or unknown: two panels of 1,024 bytes a row would fill it, and on Zen 4 it waits for fewer
// lines at a time than it takes to read memory at its pace, while the second level waits for enough.
inline bool has_small_first_level() {
  constexpr long kRoomyBytes = 48 << 10;
  static const bool is_small = sysconf(_SC_LEVEL1_DCACHE_SIZE) < kRoomyBytes;
  return is_small;
}

// The first level of Intel's cores waits for 10 to 16 lines at a time, whatever its size, and the second for 48.
inline bool is_intel() {
#if defined(__x86_64__)
  static const bool is = __builtin_cpu_is("intel");
  return is;
#else
  return false;
#endif
}

// Whether what is read at the pace of memory is asked for into the second level.
inline bool asks_second_level() { return has_small_first_level() || is_intel(); }

}  // namespace appl
