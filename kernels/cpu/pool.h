// A persistent pool of threads, which spin briefly between operators and sleep when there is no work.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "memory.h"
#include "share.h"

struct appl_pool {
 public:
  explicit appl_pool(int num_threads);  // throws appl::Error if the system refuses a thread
  ~appl_pool();
  appl_pool(const appl_pool&) = delete;
  appl_pool& operator=(const appl_pool&) = delete;

  int num_threads() const { return num_threads_; }
  // Binds each thread to a processor, thread 0 being the calling one. Throws appl::Error if the system refuses one.
  void bind(const int32_t* cpus);

  appl::Store store;                               // holds the packed weights
  appl::Share* shares() { return shares_.get(); }  // one per thread, for the next run

  // Calls work(thread) on the caller, which is thread 0, and on each other thread that joins before the caller's own call returns.
  // Returns when all that joined have returned, and throws the first exception that one of them threw. Work must therefore be handed out
  // dynamically (Chunks, Share): a thread whose core is busy with something else is not waited for.
  template <class Work>
  void run(Work&& work) {
    run_erased([](void* context, int thread) { (*static_cast<std::remove_reference_t<Work>*>(context))(thread); }, &work);
  }

  // Calls job(context) on worker 1, which is thread 0 of the job's runs, and returns at once. Returns False, and calls nothing, if there
  // is no worker. Until `help` has returned, only the job may call `run`; the job must not throw.
  using Job = void (*)(void*);
  bool lead(Job job, void* context);
  // Takes part, in the worker's place, until the job has returned. Returns at once if there is no job.
  void help();

 private:
  // The leader is the one thread that calls `announce`. It is the caller, except while `announced_` has kLed: then it is worker 1,
  // which returns the lead with the last announcement of its job. So the next leader cannot announce before the last announcement of the
  // previous leader, and `announced_` has one writer at a time.
  // An announcement is a count, in units of kCount, and flags that hold from then on: worker 1 leads, or the workers end.
  using Announcement = uint32_t;
  static constexpr Announcement kLed = 1, kStopping = 2, kCount = 4;
  static constexpr uint64_t kClosed = uint64_t{1} << 31;

  using Function = void (*)(void*, int);
  void run_erased(Function function, void* context);
  void worker(int thread);
  void do_job();
  void announce(Announcement flags, uint64_t gate);
  Announcement next(Announcement seen);
  bool enter(Announcement announcement);
  void take_part(int thread);
  void call(int thread) noexcept;
  void stop();

  const int num_threads_;
  // The leader writes these before it announces: a run, a job.
  Function function_ = nullptr;
  void* context_ = nullptr;
  Job job_ = nullptr;
  void* job_context_ = nullptr;
  // The first exception of a run. The thread that sets the flag writes it; the leader takes it when all have left.
  std::atomic_flag has_failed_;
  std::exception_ptr failure_;
  alignas(64) std::atomic<Announcement> announced_{0};  // workers wait for it to change
  // A run's announcement in the upper half; whether it is closed; how many workers are inside.
  alignas(64) std::atomic<uint64_t> gate_{kClosed};
  alignas(64) std::atomic<int> sleepers_{0};
  std::unique_ptr<appl::Share[]> shares_;
  std::vector<std::thread> threads_;
};

namespace appl {

// Hands out [0, count) in chunks, in order, to the thread that asks next.
class Chunks {
 public:
  Chunks(int64_t count, int64_t chunk) : count_(count), chunk_(chunk) {}

  // False when nothing is left.
  bool next(int64_t& begin, int64_t& end) {
    begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
    end = begin + chunk_ < count_ ? begin + chunk_ : count_;
    return begin < count_;
  }

 private:
  const int64_t count_, chunk_;
  std::atomic<int64_t> next_{0};
};

// False if sharing the work would cost more than it saves.
inline bool is_worth_sharing(const appl_pool& pool, int64_t count, int64_t work_per_item) {
  constexpr int64_t kLeastWork = 1 << 15;  // elements
  return pool.num_threads() > 1 && count > 1 && count * work_per_item >= kLeastWork;
}

// Calls body(begin, end), or body(begin, end, thread), over [0, count) on all threads, or only on the caller if the work is too small to
// share.
// `chunk` items are taken at a time; 0 chooses four chunks per thread.
template <class Body>
inline void parallel_for(appl_pool& pool, int64_t count, int64_t work_per_item, Body&& body, int64_t chunk = 0) {
  const auto call = [&](int64_t begin, int64_t end, int thread) {
    if constexpr (std::is_invocable_v<Body, int64_t, int64_t, int>) body(begin, end, thread);
    else body(begin, end);
  };
  if (!is_worth_sharing(pool, count, work_per_item)) {
    if (count > 0) call(0, count, 0);
    return;
  }
  if (chunk == 0) chunk = 1 + count / (pool.num_threads() * 4);
  Chunks chunks(count, chunk);
  pool.run([&](int thread) {
    int64_t begin, end;
    while (chunks.next(begin, end)) call(begin, end, thread);
  });
}

// Calls body(index, thread, goes_on) for [0, count) on all threads, or only on the caller if the work is too small to share. Each thread
// has a share of consecutive items; `goes_on` says that index + 1 is its next. A thread that has finished its share helps the others.
template <class Body>
inline void parallel_shares(appl_pool& pool, int64_t count, int64_t work_per_item, Body&& body) {
  if (!is_worth_sharing(pool, count, work_per_item)) {
    for (int64_t index = 0; index < count; ++index) body(index, 0, index + 1 < count);
    return;
  }
  const int threads = pool.num_threads();
  Share* const shares = pool.shares();
  const auto start = [&](int thread) { return count * thread / threads; };
  for (int i = 0; i < threads; ++i) shares[i].set(start(i), start(i + 1));
  pool.run([&](int thread) {
    int64_t index;
    while (shares[thread].take_first(index)) body(index, thread, index + 1 < start(thread + 1));
    for (int i = 1; i < threads; ++i) {
      while (shares[(thread + i) % threads].take_last(index)) body(index, thread, false);
    }
  });
}

}  // namespace appl
