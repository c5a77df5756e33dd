#include "ranks.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <string>

#include "status.h"

namespace appl {
namespace {

constexpr size_t kLine = 64;
constexpr int kSpins = 4000;    // looks at a counter with a pause between: some 50 microseconds
constexpr int kYields = 20000;  // then the core is given away between looks; after so many of these the rank sleeps between them
constexpr timespec kNap{0, 50000};

using Counter = std::atomic<uint32_t>;
static_assert(Counter::is_always_lock_free, "ranks are other processes");

Counter& line(void* page, int number) { return *reinterpret_cast<Counter*>(static_cast<uint8_t*>(page) + kLine * size_t(number)); }
Counter& failed(const appl_meeting& op) { return line(op.page, 0); }
Counter& counter(const appl_meeting& op, int rank) { return line(op.page, rank + 1); }

void relax(int looks) {
  if (looks < kSpins) __builtin_ia32_pause();
  else if (looks < kSpins + kYields) sched_yield();
  else nanosleep(&kNap, nullptr);
}

void wait_for(const appl_meeting& op, int rank, uint32_t count, std::chrono::steady_clock::time_point deadline) {
  for (int looks = 0; int32_t(counter(op, rank).load(std::memory_order_acquire) - count) < 0; ++looks) {
    if (failed(op).load(std::memory_order_relaxed) != 0) throw Error(APPL_RANK_FAILED, "a rank failed");
    if (looks % 256 == 255 && std::chrono::steady_clock::now() > deadline) {
      failed(op).store(1, std::memory_order_relaxed);
      throw Error(APPL_RANK_FAILED, "rank " + std::to_string(rank) + " did not come within " + std::to_string(op.timeout_ms) + " ms");
    }
    relax(looks);
  }
}

}  // namespace

void check_meeting(const appl_meeting& op) {
  require(op.page != nullptr && op.num_ranks > 1 && op.timeout_ms > 0, "ranks: a meeting has no page, or no other ranks");
  require(op.rank >= 0 && op.rank < op.num_ranks && op.num_ranks <= APPL_MAX_RANKS, "ranks: a rank is out of range");
}

void run_meeting(const appl_meeting& op) {
  const uint32_t count = counter(op, op.rank).fetch_add(1, std::memory_order_acq_rel) + 1;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(op.timeout_ms);
  for (int rank = 0; rank < op.num_ranks; ++rank) {
    if (rank != op.rank) wait_for(op, rank, count, deadline);
  }
}

}  // namespace appl
