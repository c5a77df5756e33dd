// Probes of the machine: how fast weights can be read, and how fast the best tile of a layout computes from cache.
#include <chrono>
#include <memory>
#include <vector>

#include "appliance_abi.h"
#include "linear.h"
#include "memory.h"
#include "pool.h"
#include "simd.h"
#include "status.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Sums a stretch so that the reads cannot be left out.
float read_all(const uint8_t* data, size_t bytes) {
  appl::Floats sums[4] = {};
  constexpr size_t kStep = sizeof(sums);
  for (size_t i = 0; i + kStep <= bytes; i += kStep) {
    __builtin_prefetch(data + i + 4096);
    for (int j = 0; j < 4; ++j) sums[j] += appl::load(data + i + size_t(j) * sizeof(appl::Floats));
  }
  return appl::reduce_add(sums[0] + sums[1] + sums[2] + sums[3]);
}

// The best rate of repeated calls of `body`, which does `amount` of something, within `seconds`.
template <class Body>
double best_rate(double seconds, double amount, Body&& body) {
  double best = 0;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    body();
    best = std::max(best, amount / seconds_since(begin));
  } while (seconds_since(start) < seconds);
  return best;
}

double measure_read(appl_pool& pool, uint64_t bytes, double seconds) {
  const appl::Memory memory{size_t(bytes)};
  std::fill_n(memory.as<uint8_t>(), bytes, uint8_t{1});
  constexpr int64_t kPiece = 1 << 20;
  std::atomic<int> sink{0};
  return best_rate(seconds, double(bytes), [&] {
    appl::parallel_for(pool, int64_t(bytes) / kPiece, kPiece, [&](int64_t begin, int64_t end) {
      sink += int(read_all(memory.as<uint8_t>() + begin * kPiece, size_t((end - begin) * kPiece)));
    }, 4);
  });
}

double measure_peak(appl_pool& pool, int32_t layout, double seconds) {
  constexpr int kColumns = 512, kTileRows = 240;
  const int rows = 64 * pool.num_threads();
  const std::vector<uint8_t> data(size_t(rows) * kColumns * 4);
  const std::vector<float> scale(size_t(rows) * size_t(kColumns / 128), 1.0f);
  const appl_matrix matrix{layout, rows, kColumns, 128, 1, 0, data.data(), scale.data(), nullptr};
  const std::unique_ptr<appl_weight> weight(appl::pack(pool, matrix));
  const appl::PreparedShape shape = appl::input_shape(*weight, true);
  const appl::Memory input(shape.bytes(kTileRows));
  const std::vector<float> x(size_t(kTileRows) * kColumns, 1.0f);
  std::vector<float> out(size_t(kTileRows) * size_t(rows));
  const appl::Prepared prepared = appl::prepare(pool, shape, x.data(), kTileRows, kColumns, input.as<uint8_t>());
  const appl::LinearCall call{weight.get(), prepared, nullptr, out.data(), rows, nullptr, 0, false};
  constexpr int kRepeats = 8;
  return best_rate(seconds, 2.0 * kRepeats * kTileRows * kColumns * rows, [&] {
    for (int i = 0; i < kRepeats; ++i) appl::run_linear(pool, call);
  });
}

}  // namespace

int32_t appl_measure_read(appl_pool* pool, uint64_t buffer_bytes, double seconds, double* bytes_per_second) {
  return appl::guarded([&] {
    appl::require(buffer_bytes >= (uint64_t{1} << 22), "the buffer is too small to measure memory");
    *bytes_per_second = measure_read(*pool, buffer_bytes, seconds);
  });
}

int32_t appl_measure_peak(appl_pool* pool, int32_t layout, double seconds, double* operations_per_second) {
  return appl::guarded([&] { *operations_per_second = measure_peak(*pool, layout, seconds); });
}
