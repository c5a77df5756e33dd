#include "pool.h"

#include <climits>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

constexpr int kSpins = 2000;  // some 30 to 100 microseconds: longer than any gap inside a step, short enough to be unseen

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void futex_wait(std::atomic<uint32_t>& word, uint32_t expected) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

appl_pool::appl_pool(int num_threads)
    : num_threads_(num_threads),
      shares_(new appl::Share[size_t(num_threads)]),
      threads_(new std::thread[size_t(num_threads - 1)]) {
  for (int i = 1; i < num_threads; ++i) threads_[i - 1] = std::thread([this, i] { worker(i); });
}

appl_pool::~appl_pool() {
  stopping_ = true;
  epoch_.fetch_add(1);
  futex_wake_all(epoch_);
  for (int i = 1; i < num_threads_; ++i) threads_[i - 1].join();
}

void appl_pool::run_erased(Function function, void* context) {
  if (num_threads_ == 1) return function(context, 0);
  function_ = function;
  context_ = context;
  announce(0);
  function(context, 0);
  gate_.fetch_or(kClosed, std::memory_order_relaxed);
  for (int spins = 0; (gate_.load(std::memory_order_acquire) & (kClosed - 1)) != 0; ++spins) {
    if (spins < kSpins) relax();
    else sched_yield();  // a worker was descheduled: give it this core
  }
}

bool appl_pool::lead(Job job, void* context) {
  if (num_threads_ == 1) return false;
  job_ = job;
  job_context_ = context;
  has_job_.store(true);
  job_epoch_ = announce(kClosed);
  return true;
}

void appl_pool::help() {
  for (uint32_t seen = job_epoch_; has_job_.load(std::memory_order_acquire);) {
    seen = next_epoch(seen);
    if (enter(seen)) take_part(1);
  }
}

void appl_pool::worker(int thread) {
  for (uint32_t seen = 0;;) {
    seen = next_epoch(seen);
    if (stopping_) return;
    if (thread == 1 && has_job_.load()) seen = do_job();
    else if (enter(seen)) take_part(thread);
  }
}

// Returns the epoch behind it, which tells who helps that it is over.
uint32_t appl_pool::do_job() {
  job_(job_context_);
  has_job_.store(false, std::memory_order_release);
  return announce(kClosed);
}

void appl_pool::take_part(int thread) {
  function_(context_, thread);
  gate_.fetch_sub(1, std::memory_order_release);
}

// Begins an epoch, with its gate open (0) or closed, and wakes who sleeps.
uint32_t appl_pool::announce(uint64_t gate) {
  const uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  gate_.store(uint64_t{epoch} << 32 | gate, std::memory_order_release);
  epoch_.store(epoch);  // sequentially consistent, as is the sleepers' increment: one of the two sees the other
  if (sleepers_.load() > 0) futex_wake_all(epoch_);
  return epoch;
}

// Waits until the epoch differs from `seen`.
uint32_t appl_pool::next_epoch(uint32_t seen) {
  for (;;) {
    for (int spins = 0; spins < kSpins; ++spins) {
      const uint32_t epoch = epoch_.load(std::memory_order_acquire);
      if (epoch != seen) return epoch;
      relax();
    }
    sleepers_.fetch_add(1);
    futex_wait(epoch_, seen);
    sleepers_.fetch_sub(1);
  }
}

// False when the run of that epoch is over: function_ and context_ are then another's, or nobody's.
bool appl_pool::enter(uint32_t epoch) {
  uint64_t gate = gate_.load(std::memory_order_relaxed);
  while (gate >> 32 == epoch && (gate & kClosed) == 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
  }
  return false;
}
