#include "matrix.h"

#include <algorithm>
#include <utility>

#if APPL_AMX
#include "amx.h"
#if !defined(APPL_EMULATE_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace appl {

#if APPL_AMX

namespace {

constexpr int kLineBytes = kPanel * 4;  // a line of a panel is a row of a register
constexpr int kA = 4, kB = 6;           // registers: 0 to 3 are sums, then two of the input, two of weights

// The shape of the registers for up to 32 rows: `bytes` of each row at a time, multiplied with as many bytes of columns.
amx::Config shape_of(int rows, int bytes) {
  const int upper = std::min(rows, amx::kRows), lower = rows - upper;
  amx::Config config;
  for (int i = 0; i < kA; ++i) config.set(i, lower > 0 && i >= 2 ? lower : upper, amx::kRowBytes);
  config.set(kA, upper, bytes);
  config.set(kA + 1, lower, lower > 0 ? bytes : 0);
  for (int i = kB; i < amx::kRegisters; ++i) config.set(i, bytes / 4, amx::kRowBytes);
  return config;
}

struct Bf16Product {
  static constexpr int kColumnBytes = 2;
  template <int C, int A, int B>
  static void add() {
    amx::multiply_bf16<C, A, B>();
  }
};
struct ByteProduct {
  static constexpr int kColumnBytes = 1;
  template <int C, int A, int B>
  static void add() {
    amx::multiply_bytes<C, A, B>();
  }
};

// The sums of 16 rows by up to 4 panels, in registers 0 to 3; or of 32 rows (kHalves 2) by up to 2 panels, in 0 and 1, and in 2 and 3.
template <class Product, int kHalves, int kPanels>
struct Sums {
  static_assert(kHalves * kPanels <= 4);
  using Panels = std::make_integer_sequence<int, kPanels>;
  static constexpr int kStep = amx::kRowBytes / Product::kColumnBytes;  // columns

  template <class Each>
  static void for_each(Each&& each) {
    [&]<int... P>(std::integer_sequence<int, P...>) {
      (each(std::integral_constant<int, P>{}, std::integral_constant<int, 0>{}), ...);
      if constexpr (kHalves == 2) (each(std::integral_constant<int, P>{}, std::integral_constant<int, 1>{}), ...);
    }(Panels{});
  }

  static void clear() {
    for_each([](auto panel, auto half) { amx::zero<half * 2 + panel>(); });
  }
  static void fetch(const void* from, size_t stride) {
    for_each([&](auto panel, auto half) { amx::load<half * 2 + panel>(place(from, stride, panel, half), stride); });
  }
  static void keep(void* to, size_t stride) {
    for_each([&](auto panel, auto half) { amx::store<half * 2 + panel>(const_cast<uint8_t*>(place(to, stride, panel, half)), stride); });
  }
  static const uint8_t* place(const void* base, size_t stride, int panel, int half) {
    return static_cast<const uint8_t*>(base) + size_t(half * amx::kRows) * stride + panel * kLineBytes;
  }

  // Adds the columns of one shape: each step takes a register's row of the input.
  static void add(const uint8_t* a, const uint8_t* b, size_t panel_bytes, int steps) {
    for (; steps > 0; --steps, a += amx::kRowBytes, b += amx::kRows * kLineBytes) {
      amx::load<kA>(a, kRowBytes);
      if constexpr (kHalves == 2) amx::load<kA + 1>(a + amx::kRows * kRowBytes, kRowBytes);
      [&]<int... P>(std::integer_sequence<int, P...>) { (add_panel<P>(b + size_t(P) * panel_bytes), ...); }(Panels{});
    }
  }

 private:
  template <int P>
  static void add_panel(const uint8_t* b) {
    constexpr int kWeights = kB + P % 2;
    amx::load<kWeights>(b, kLineBytes);
    Product::template add<P, kA, kWeights>();
    if constexpr (kHalves == 2) Product::template add<2 + P, kA + 1, kWeights>();
  }
};

// Adds the products of `columns` of the input with the panels to sums in memory. Columns that do not fill a register have another shape.
template <class S>
void add_columns(const uint8_t* a, const TileArgs& t, const uint8_t* b, int rows, int columns, bool adds, void* c, size_t stride) {
  const int steps = columns / S::kStep, rest = columns % S::kStep, step_bytes = amx::kRows * kLineBytes;
  if (steps > 0) {
    amx::configure(shape_of(rows, amx::kRowBytes));
    if (adds) S::fetch(c, stride);
    else S::clear();
    S::add(a, b, t.panel_bytes, steps);
    S::keep(c, stride);
  }
  if (rest == 0) return;
  amx::configure(shape_of(rows, rest * amx::kRowBytes / S::kStep));
  if (adds || steps > 0) S::fetch(c, stride);
  else S::clear();
  S::add(a + size_t(steps) * amx::kRowBytes, b + size_t(steps) * size_t(step_bytes), t.panel_bytes, 1);
  S::keep(c, stride);
}

template <int kHalves, int kPanels>
void run_bf16(int rows, const TileArgs& t) {
  add_columns<Sums<Bf16Product, kHalves, kPanels>>(t.a, t, t.b, rows, t.columns, t.add, t.c, t.ldc * sizeof(float));
}

// c += (products - zero point * sum of the input) * scale of the input * scale of the weights, then adds the offsets.
template <int kPanels>
void scale_products(const TileArgs& t, const int32_t (&products)[kMaxMatrixRows][kMaxTilePanels * kPanel], int rows, bool adds) {
  constexpr int kVectors = kPanels * kPanelVectors;
  const auto header = [&](int v) { return t.header + size_t(v / kPanelVectors) * t.panel_bytes; };
  for (int v = 0; v < kVectors; ++v) {
    const Floats weight_scale = load_scales(header(v), t.scale_type, v % kPanelVectors);
    const Floats offset = t.has_offset ? load_offsets(header(v), t.scale_type, v % kPanelVectors) : Floats{};
    for (int m = 0; m < rows; ++m) {
      float* c = t.c + size_t(m) * t.ldc + v * kWidth;
      const Ints sum = load<Ints>(products[m] + v * kWidth) + splat_int(int32_t(t.sum[m] * -t.zero_point));
      const Floats start = adds ? load(c) : Floats{};
      const Floats scaled = multiply_add(start, to_floats(sum) * splat(t.scale[m]), weight_scale);
      store(c, t.has_offset ? multiply_add(scaled, splat(t.scaled_sum[m]), offset) : scaled);
    }
  }
}

template <int kHalves, int kPanels>
void run_bytes(int rows, const TileArgs& t) {
  alignas(64) int32_t products[kMaxMatrixRows][kMaxTilePanels * kPanel];
  TileArgs group = t;
  for (int first = 0; first < t.columns; first += t.group_size) {
    const int columns = std::min(t.group_size, t.columns - first);
    add_columns<Sums<ByteProduct, kHalves, kPanels>>(group.a, t, group.b, rows, columns, false, products, sizeof(products[0]));
    scale_products<kPanels>(group, products, rows, t.add || first > 0);
    group.a += columns;
    group.b += t.group_stride;
    group.header += t.header_stride;
    group.scale += t.side_stride;
    group.sum += t.side_stride;
    group.scaled_sum += t.side_stride;
  }
}

}  // namespace

bool has_matrix_form(const appl_weight& w, bool quantizes_activations) {
  return w.layout == APPL_BF16 || (w.layout == APPL_INT8 && w.num_groups == 1 && quantizes_activations);
}

void run_matrix(appl_layout layout, int rows, int panels, const TileArgs& t) {
  using Run = void (*)(int, const TileArgs&);
  static constexpr Run kBf16[2][3] = {{run_bf16<1, 1>, run_bf16<1, 2>, run_bf16<1, 4>}, {run_bf16<2, 1>, run_bf16<2, 2>, nullptr}};
  static constexpr Run kBytes[2][3] = {{run_bytes<1, 1>, run_bytes<1, 2>, run_bytes<1, 4>}, {run_bytes<2, 1>, run_bytes<2, 2>, nullptr}};
  // The table is named first: with a sanitizer, g++ 12 evaluates the indices of a conditional table in one of its branches alone.
  const Run(&runs)[2][3] = layout == APPL_BF16 ? kBf16 : kBytes;
  runs[rows > amx::kRows][panels / 2](rows, t);
}

void release_matrix_unit() { amx::release(); }

bool may_use_matrix_unit() {
#if defined(APPL_EMULATE_AMX)
  return true;
#else
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA)
  static const bool is_granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return is_granted;
#endif
}

namespace {

template <class Product>
double multiply_in_registers(int repeats) {
  alignas(64) uint8_t ones[amx::kRows][amx::kRowBytes];
  std::fill_n(ones[0], sizeof(ones), uint8_t{1});
  amx::configure(shape_of(2 * amx::kRows, amx::kRowBytes));
  amx::load<kA>(ones, amx::kRowBytes);
  amx::load<kA + 1>(ones, amx::kRowBytes);
  amx::load<kB>(ones, amx::kRowBytes);
  for (int i = 0; i < repeats; ++i) {
    Product::template add<0, kA, kB>();
    Product::template add<1, kA, kB>();
    Product::template add<2, kA + 1, kB>();
    Product::template add<3, kA + 1, kB>();
  }
  amx::release();
  return 4.0 * 2 * amx::kRows * kPanel * amx::kRowBytes / Product::kColumnBytes * repeats;
}

}  // namespace

double multiply_bf16_in_matrix_unit(int repeats) { return multiply_in_registers<Bf16Product>(repeats); }
double multiply_bytes_in_matrix_unit(int repeats) { return multiply_in_registers<ByteProduct>(repeats); }

#else

bool has_matrix_form(const appl_weight&, bool) { return false; }
void run_matrix(appl_layout, int, int, const TileArgs&) {}
void release_matrix_unit() {}
bool may_use_matrix_unit() { return true; }
double multiply_bf16_in_matrix_unit(int) { return 0; }
double multiply_bytes_in_matrix_unit(int) { return 0; }

#endif

}  // namespace appl
