// Probes of the machine: how fast weights can be read, and how fast the level's products are computed in registers.
#include <algorithm>
#include <atomic>
#include <chrono>

#include "appliance_abi.h"
#include "caches.h"
#include "matrix.h"
#include "memory.h"
#include "pool.h"
#include "simd.h"
#include "status.h"
#include "tile.h"

namespace {

using appl::bit_cast;
using appl::Floats;
using appl::kWidth;
using appl::Words;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Sums a range, so that the compiler cannot remove the reads.
float read_all(const uint8_t* data, size_t bytes) {
  appl::Floats sums[4] = {};
  constexpr size_t kStep = sizeof(sums), kAhead = 4096;
  for (size_t i = 0; i + kStep <= bytes; i += kStep) {
    for (size_t line = 0; line < kStep; line += appl::kLine) __builtin_prefetch(data + i + line + kAhead, 0, 2);
    for (int j = 0; j < 4; ++j) sums[j] += appl::load(data + i + size_t(j) * sizeof(appl::Floats));
  }
  return appl::reduce_add(sums[0] + sums[1] + sums[2] + sums[3]);
}

// The rates of repeated calls of `body`, each of which does `amount` of work, within `seconds`.
template <class Body>
appl_rates rates_of(double seconds, double amount, Body&& body) {
  double best = 0;
  int calls = 0;
  const auto start = Clock::now();
  do {
    const auto begin = Clock::now();
    body();
    ++calls;
    best = std::max(best, amount / seconds_since(begin));
  } while (seconds_since(start) < seconds);
  return {best, amount * calls / seconds_since(start)};
}

appl_rates measure_read(appl_pool& pool, uint64_t bytes, double seconds) {
  const appl::Memory memory{size_t(bytes)};
  std::fill_n(memory.as<uint8_t>(), bytes, uint8_t{1});
  constexpr int64_t kPiece = 1 << 20;
  std::atomic<int> sink{0};
  const auto read = [&] {
    const auto sum = [&](int64_t begin, int64_t end) {
      sink += int(read_all(memory.as<uint8_t>() + begin * kPiece, size_t((end - begin) * kPiece)));
    };
    appl::parallel_for(pool, int64_t(bytes) / kPiece, kPiece, sum, 4);
  };
  read();  // the first pass also waits until the filled buffer has reached memory
  return rates_of(seconds, double(bytes), read);
}

// Products of one kind in registers: `add` gives sum + a * b, which counts as kOperations.
struct FloatProducts {
  using Sum = Floats;
  static constexpr double kOperations = 2.0 * kWidth;
  static Sum add(Sum sum, Words a, Words b) { return appl::multiply_add(sum, bit_cast<Floats>(a), bit_cast<Floats>(b)); }
};

#if APPL_BF16_DOT
struct Bf16Products {
  using Sum = Floats;
  static constexpr double kOperations = 4.0 * kWidth;
  static Sum add(Sum sum, Words a, Words b) {
    return bit_cast<Sum>(_mm512_dpbf16_ps(bit_cast<__m512>(sum), bit_cast<__m512bh>(a), bit_cast<__m512bh>(b)));
  }
};
#else
using Bf16Products = FloatProducts;  // bf16 is widened, then multiplied as f32
#endif

#if APPL_VNNI
struct Int8Products {
  using Sum = appl::Ints;
  static constexpr double kOperations = 8.0 * kWidth;
  static Sum add(Sum sum, Words a, Words b) {
    return bit_cast<Sum>(_mm512_dpbusd_epi32(bit_cast<__m512i>(sum), bit_cast<__m512i>(a), bit_cast<__m512i>(b)));
  }
};
#elif APPL_WIDTH >= 8
struct Int8Products {  // unsigned times signed bytes, in pairs of 16 bits; folding to 32 bits is not counted
  using Sum = int16_t __attribute__((vector_size(kWidth * 4)));
  static constexpr double kOperations = 8.0 * kWidth;
  static Sum add(Sum sum, Words a, Words b) {
    Sum product;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+v"(sum), "=&v"(product) : "v"(a), "v"(b));
    return sum;
  }
};
#else
using Int8Products = FloatProducts;
#endif

// Independent sums: more than the pipeline's depth times its width, fewer than there are registers.
constexpr int kSums = appl::kRegisters > 16 ? 20 : 10;
constexpr int kRepeats = 1 << 14, kPiecesPerThread = 16;

template <class Products>
int multiply_in_registers() {
  typename Products::Sum sums[kSums];  // all different: equal sums would be computed once
#pragma GCC unroll 32
  for (int i = 0; i < kSums; ++i) sums[i] = bit_cast<typename Products::Sum>(appl::splat_word(0x3f800000u + uint32_t(i)));
  Words a = appl::splat_word(0x01010101u), b = a;
  for (int i = 0; i < kRepeats; ++i) {
    asm volatile("" : "+m"(a), "+m"(b));  // hides the factors, so that no product is moved out of the loop
    const Words x = a, y = b;
#pragma GCC unroll 32
    for (auto& sum : sums) sum = Products::add(sum, x, y);
  }
  int result = 0;
#pragma GCC unroll 32
  for (const auto& sum : sums) result += bit_cast<appl::Ints>(sum)[0] & 1;
  return result;
}

// The rate of all threads for pieces of work of `amount` each.
template <class Piece>
appl_rates measure_pieces(appl_pool& pool, double seconds, double amount, Piece&& piece) {
  const int64_t count = int64_t{kPiecesPerThread} * pool.num_threads();
  const auto do_pieces = [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) piece();
  };
  return rates_of(seconds, amount * double(count), [&] { appl::parallel_for(pool, count, int64_t{kSums} * kRepeats, do_pieces, 1); });
}

template <class Products>
appl_rates measure_products(appl_pool& pool, double seconds) {
  std::atomic<int> sink{0};
  return measure_pieces(pool, seconds, Products::kOperations * kSums * kRepeats, [&] { sink += multiply_in_registers<Products>(); });
}

// The rates of the matrix unit.
appl_rates measure_unit(appl_pool& pool, double (&multiply)(int), double seconds) {
  return measure_pieces(pool, seconds, multiply(1) * kRepeats, [&] { multiply(kRepeats); });
}

appl_rates measure_peak(appl_pool& pool, int32_t layout, double seconds) {
  if (appl::kHasMatrixUnit && layout == APPL_BF16) return measure_unit(pool, appl::multiply_bf16_in_matrix_unit, seconds);
  if (appl::kHasMatrixUnit && layout == APPL_INT8) return measure_unit(pool, appl::multiply_bytes_in_matrix_unit, seconds);
  switch (layout) {
    case APPL_INT8:
    case APPL_INT4:
    case APPL_INT5:
    case APPL_INT6: return measure_products<Int8Products>(pool, seconds);
    case APPL_BF16: return measure_products<Bf16Products>(pool, seconds);
    default: return measure_products<FloatProducts>(pool, seconds);
  }
}

}  // namespace

int32_t appl_measure_read(appl_pool* pool, uint64_t buffer_bytes, double seconds, appl_rates* bytes_per_second) {
  return appl::guarded([&] {
    appl::require(buffer_bytes >= (uint64_t{1} << 22), "the buffer is too small to measure memory");
    *bytes_per_second = measure_read(*pool, buffer_bytes, seconds);
  });
}

int32_t appl_measure_peak(appl_pool* pool, int32_t layout, double seconds, appl_rates* operations_per_second) {
  return appl::guarded([&] { *operations_per_second = measure_peak(*pool, layout, seconds); });
}
