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

appl_pool::appl_pool(int num_threads) : num_threads_(num_threads), threads_(new std::thread[size_t(num_threads - 1)]) {
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
  pending_.store(num_threads_ - 1, std::memory_order_relaxed);
  epoch_.fetch_add(1);  // sequentially consistent, as is the sleepers' increment: one of the two sees the other
  if (sleepers_.load() > 0) futex_wake_all(epoch_);
  function(context, 0);
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < kSpins) relax();
    else sched_yield();  // a worker was descheduled: give it this core
  }
}

void appl_pool::worker(int thread) {
  for (uint32_t seen = 0;; ++seen) {
    while (!await_work(seen)) {
    }
    if (stopping_) return;
    function_(context_, thread);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

// Waits until the epoch differs from `seen`; false after a spurious wake-up.
bool appl_pool::await_work(uint32_t seen) {
  for (int spins = 0; spins < kSpins; ++spins) {
    if (epoch_.load(std::memory_order_acquire) != seen) return true;
    relax();
  }
  sleepers_.fetch_add(1);
  futex_wait(epoch_, seen);
  sleepers_.fetch_sub(1);
  return epoch_.load(std::memory_order_acquire) != seen;
}
