#include "ranks.h"

#include <sched.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <string>

#include "status.h"

namespace appl {
namespace {

constexpr int kSpins = 4000;    // looks at a counter with a pause between: some 50 microseconds
constexpr int kYields = 20000;  // then the core is given away between looks; after so many of these the rank sleeps between them
constexpr timespec kNap{0, 50000};
constexpr uint32_t kNamed = 2;  // what says that the one of number n failed is so much more than n; 1 names nobody

using Counter = std::atomic<uint32_t>;
static_assert(Counter::is_always_lock_free, "ranks are other processes");

Counter& failed(const Group& group) { return *reinterpret_cast<Counter*>(group.line(-1)); }
Counter& counter(const Group& group, int rank) { return *reinterpret_cast<Counter*>(group.line(rank)); }

std::string name_of(const Group& group, uint32_t number) {
  return (group.are_replicas ? "replica " : "rank ") + std::to_string(number / uint32_t(group.ranks_each));
}

void check_failed(const Group& group) {
  const uint32_t said = failed(group).load(std::memory_order_relaxed);
  if (said == 0) return;
  if (said < kNamed) throw Error(APPL_RANK_FAILED, group.are_replicas ? "a replica failed" : "a rank failed");
  throw Error(APPL_RANK_FAILED, name_of(group, said - kNamed) + " is gone");
}

void relax(int looks) {
  if (looks < kSpins) __builtin_ia32_pause();
  else if (looks < kSpins + kYields) sched_yield();
  else nanosleep(&kNap, nullptr);
}

void wait_for(const Group& group, int rank, uint32_t count, std::chrono::steady_clock::time_point deadline) {
  for (int looks = 0; int32_t(counter(group, rank).load(std::memory_order_acquire) - count) < 0; ++looks) {
    check_failed(group);
    if (looks % 256 == 255 && std::chrono::steady_clock::now() > deadline) {
      failed(group).store(kNamed + uint32_t(rank), std::memory_order_relaxed);
      const std::string after = std::to_string(group.timeout_ms) + " ms";
      throw Error(APPL_RANK_FAILED, name_of(group, uint32_t(rank)) + " did not come within " + after);
    }
    relax(looks);
  }
}

Group group_of(const appl_meeting& op) { return {op.page, op.rank, op.num_ranks, 1, op.timeout_ms, false}; }

}  // namespace

void check_group(const Group& group) {
  require(group.page != nullptr && group.num_ranks > 1 && group.timeout_ms > 0, "ranks: a meeting has no page, or no other ranks");
  require(group.rank >= 0 && group.rank < group.num_ranks && group.num_ranks <= APPL_MAX_RANKS, "ranks: a rank is out of range");
  require(group.ranks_each > 0 && group.num_ranks % group.ranks_each == 0, "ranks: replicas have unequal numbers of them");
}

void meet(const Group& group) {
  const uint32_t count = counter(group, group.rank).fetch_add(1, std::memory_order_acq_rel) + 1;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(group.timeout_ms);
  for (int rank = 0; rank < group.num_ranks; ++rank) {
    if (rank != group.rank) wait_for(group, rank, count, deadline);
  }
}

void fail(const Group& group) { failed(group).store(kNamed + uint32_t(group.rank), std::memory_order_relaxed); }

void check_meeting(const appl_meeting& op) { check_group(group_of(op)); }

void run_meeting(const appl_meeting& op) { meet(group_of(op)); }

}  // namespace appl
