#include "pool.h"

#include <climits>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "status.h"

namespace {

constexpr int kSpins = 2000;  // some 30 to 100 microseconds: longer than any gap inside a step, too short to matter otherwise

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

void bind_thread(pthread_t thread, int cpu) {
  cpu_set_t* const set = CPU_ALLOC(size_t(cpu) + 1);
  const size_t bytes = CPU_ALLOC_SIZE(size_t(cpu) + 1);
  appl::require(set != nullptr, "pool: no memory for a set of processors");
  CPU_ZERO_S(bytes, set);
  CPU_SET_S(size_t(cpu), bytes, set);
  const int error = pthread_setaffinity_np(thread, bytes, set);
  CPU_FREE(set);
  if (error != 0) {
    throw appl::Error(APPL_UNSUPPORTED, "a thread cannot be bound to processor " + std::to_string(cpu) + ": " + std::strerror(error));
  }
}

}  // namespace

appl_pool::appl_pool(int num_threads) : num_threads_(num_threads), shares_(new appl::Share[size_t(num_threads)]) {
  threads_.reserve(size_t(num_threads - 1));
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this, i] { worker(i); });
  } catch (const std::system_error& error) {
    stop();
    throw appl::Error(APPL_UNSUPPORTED, "thread " + std::to_string(threads_.size() + 2) + " of " + std::to_string(num_threads) +
                                            " cannot be started: " + error.what());
  }
}

appl_pool::~appl_pool() {
  help();
  stop();
}

void appl_pool::stop() {
  announce(kStopping, kClosed);
  for (std::thread& thread : threads_) thread.join();
}

void appl_pool::bind(const int32_t* cpus) {
  bind_thread(pthread_self(), cpus[0]);
  for (size_t i = 0; i < threads_.size(); ++i) bind_thread(threads_[i].native_handle(), cpus[i + 1]);
}

void appl_pool::run_erased(Function function, void* context) {
  if (num_threads_ == 1) return function(context, 0);
  function_ = function;
  context_ = context;
  announce(announced_.load(std::memory_order_relaxed) & kLed, 0);
  call(0);
  gate_.fetch_or(kClosed, std::memory_order_relaxed);
  for (int spins = 0; (gate_.load(std::memory_order_acquire) & (kClosed - 1)) != 0; ++spins) {
    if (spins < kSpins) relax();
    else sched_yield();  // a worker was descheduled: give it this core
  }
  if (failure_ == nullptr) return;
  has_failed_.clear(std::memory_order_relaxed);
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

bool appl_pool::lead(Job job, void* context) {
  if (num_threads_ == 1) return false;
  job_ = job;
  job_context_ = context;
  announce(kLed, kClosed);
  return true;
}

void appl_pool::help() {
  for (Announcement now = announced_.load(std::memory_order_acquire); (now & kLed) != 0; now = next(now)) {
    if (enter(now)) take_part(1);
  }
}

// Worker 1 sees kLed once per job: it reads no announcement while it runs the job, and the job's last announcement is without kLed.
void appl_pool::worker(int thread) {
  for (Announcement now = announced_.load(std::memory_order_acquire); (now & kStopping) == 0; now = next(now)) {
    if (thread == 1 && (now & kLed) != 0) do_job();
    else if (enter(now)) take_part(thread);
  }
}

// Runs the job. With its last announcement the caller leads again.
void appl_pool::do_job() {
  job_(job_context_);
  announce(0, kClosed);
}

void appl_pool::take_part(int thread) {
  call(thread);
  gate_.fetch_sub(1, std::memory_order_release);
}

void appl_pool::call(int thread) noexcept {
  try {
    function_(context_, thread);
  } catch (...) {
    if (!has_failed_.test_and_set(std::memory_order_relaxed)) failure_ = std::current_exception();
  }
}

// Only the leader calls this. The gate is open (0) or closed.
void appl_pool::announce(Announcement flags, uint64_t gate) {
  const Announcement next = (announced_.load(std::memory_order_relaxed) / kCount + 1) * kCount | flags;
  gate_.store(uint64_t{next} << 32 | gate, std::memory_order_release);
  announced_.store(next);  // sequentially consistent, like the sleepers' increment, so that one of the two sees the other
  if (sleepers_.load() > 0) futex_wake_all(announced_);
}

// Waits for an announcement other than `seen`.
appl_pool::Announcement appl_pool::next(Announcement seen) {
  for (;;) {
    for (int spins = 0; spins < kSpins; ++spins) {
      const Announcement now = announced_.load(std::memory_order_acquire);
      if (now != seen) return now;
      relax();
    }
    sleepers_.fetch_add(1);
    futex_wait(announced_, seen);
    sleepers_.fetch_sub(1);
  }
}

// False when the run of that announcement is over: function_ and context_ then belong to another run, or to none.
bool appl_pool::enter(Announcement announcement) {
  uint64_t gate = gate_.load(std::memory_order_relaxed);
  while (gate >> 32 == announcement && (gate & kClosed) == 0) {
    if (gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
  }
  return false;
}
