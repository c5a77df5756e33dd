// Runs and jobs of a pool for some seconds, beside busy threads: pool_stress THREADS SECONDS BUSY
// Exits with 1 and says so where nothing goes on for a while, where an item is not done exactly once, or where an exception is lost.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "pool.h"

namespace {

constexpr auto kPatience = std::chrono::seconds(20);
constexpr int64_t kItems = 64, kMuchWork = 1 << 20;

std::atomic<long> rounds{0};

void expect(bool condition, const char* what) {
  if (condition) return;
  std::printf("round %ld: %s\n", rounds.load(), what);
  std::fflush(stdout);
  std::_Exit(1);
}

void watch() {
  for (long last = -1;;) {
    std::this_thread::sleep_for(kPatience);
    const long now = rounds;
    expect(now != last, "the pool hangs");
    last = now;
  }
}

void keep_busy() {
  for (volatile unsigned i = 0;; i = i + 1) {
  }
}

// Each item is done once; what is counted is written by one thread an item and read when all have returned.
void divide(appl_pool& pool) {
  int in_chunks[kItems] = {}, in_shares[kItems] = {};
  appl::parallel_for(pool, kItems, kMuchWork, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) ++in_chunks[begin];
  });
  appl::parallel_shares(pool, kItems, kMuchWork, [&](int64_t index, int, bool) { ++in_shares[index]; });
  for (int i = 0; i < kItems; ++i) expect(in_chunks[i] == 1 && in_shares[i] == 1, "an item is not done once");
}

void fail(appl_pool& pool) {
  const auto work = [](int64_t begin, int64_t) {
    if (begin > kItems / 2) throw std::runtime_error("on purpose");
  };
  try {
    appl::parallel_for(pool, kItems, kMuchWork, work, 1);
  } catch (const std::runtime_error&) {
    return;
  }
  expect(false, "an exception is lost");
}

struct Job {
  appl_pool* pool;
  long round;
  long answer = 0;
};

void run_job(void* context) {
  Job& job = *static_cast<Job*>(context);
  for (int i = 0; i < 3; ++i) job.pool->run([](int) {});
  if (job.round % 4 == 0) divide(*job.pool);
  job.answer = job.round;
}

void run_round(appl_pool& pool, long round) {
  pool.run([](int) {});
  Job job{&pool, round};
  expect(pool.lead(run_job, &job), "there is no worker to lead");
  for (volatile long i = 0; i < round % 256; i = i + 1) {
  }
  pool.help();
  expect(job.answer == round, "help returned before its job");
  pool.help();  // there is none
  if (round % 4 == 1) divide(pool);
  if (round % 64 == 2) fail(pool);
}

}  // namespace

int main(int, char** arguments) {
  const int threads = std::atoi(arguments[1]), busy = std::atoi(arguments[3]);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(std::atoi(arguments[2]));
  std::thread(watch).detach();
  for (int i = 0; i < busy; ++i) std::thread(keep_busy).detach();
  while (std::chrono::steady_clock::now() < end) {
    appl_pool pool(threads);  // a new one now and then: its beginning and its end are tried as well
    for (int i = 0; i < 1000 && std::chrono::steady_clock::now() < end; ++i) run_round(pool, ++rounds);
  }
  std::printf("%ld rounds\n", rounds.load());
  std::fflush(stdout);
  std::_Exit(0);
}
