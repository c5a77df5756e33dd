#include "weight.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "planes.h"
#include "prepared.h"
#include "simd.h"
#include "status.h"

namespace appl {
namespace {

float scale_at(const void* values, appl_scale type, size_t index) {
  switch (type) {
    case APPL_SCALE_F32: return static_cast<const float*>(values)[index];
    case APPL_SCALE_E8M0: return e8m0_to_float(static_cast<const uint8_t*>(values)[index]);
    default: return f16_to_float(static_cast<const uint16_t*>(values)[index]);
  }
}

// Codes that stand for floats have neither offsets nor sub-groups.
bool is_coded(int layout) { return layout >= APPL_F8; }

int element_bits(int layout) {
  switch (layout) {
    case APPL_INT8:
    case APPL_F8: return 8;
    case APPL_INT5: return 5;
    case APPL_INT6: return 6;
    default: return 4;
  }
}

// The zero point of symmetric weights: it replaces an offset that is always minus this times the scale.
int centre(int layout) { return 1 << (element_bits(layout) - 1); }

void check_groups(int layout, int columns, int group_size, int sub_group_size) {
  if (sub_group_size != 0) {
    require(layout != APPL_INT8 && !is_coded(layout) && group_size == 256 && columns % 256 == 0,
            "sub-groups are of int4, int5 and int6 in groups of 256");
    require(sub_group_size == 32 || (sub_group_size == 16 && layout != APPL_INT5), "sub-groups have 32 columns, or of int4 and int6 16");
    return;
  }
  if (layout == APPL_INT5 || layout == APPL_INT6) {
    const int unit = layout == APPL_INT5 ? Planes<5>::kColumns : Planes<6>::kColumns;
    require(group_size > 0 && group_size % unit == 0 && 256 % group_size == 0 && columns % group_size == 0,
            "group_size of int5 must be 32 to 256, of int6 16 to 256, and divide 256 and the number of columns");
    return;
  }
  require(group_size == columns || (group_size >= kMinActivationGroup && kMaxActivationGroup % group_size == 0),
          "group_size must divide 256 and be 8 or more, or be the number of columns");
  require(columns % group_size == 0, "group_size does not divide the number of columns");
  require(element_bits(layout) == 8 || columns % 2 == 0, "a weight of four bits has an odd number of columns");
}

void check_scales(int layout, int scale_type, bool has_offset) {
  require(scale_type >= APPL_SCALE_F16 && scale_type <= APPL_SCALE_E8M0, "a weight has scales of an unknown type");
  require(is_coded(layout) || scale_type != APPL_SCALE_E8M0, "integers have no scales of e8m0");
  require(!is_coded(layout) || !has_offset, "codes that stand for floats have no offsets");
}

void check(const appl_matrix& m) {
  require(m.layout >= APPL_F32 && m.layout <= APPL_IQ4_NL, "a weight has an unknown layout");
  require(m.rows > 0 && m.columns > 0, "a weight has no elements");
  require(m.data != nullptr, "a weight has no data");
  if (m.layout < APPL_INT8) return;
  require(m.scale != nullptr, "a quantized weight has no scale");
  check_groups(m.layout, m.columns, m.group_size, m.sub_group_size);
  check_scales(m.layout, m.scale_type, m.offset != nullptr);
  if (m.sub_group_size == 0) return;
  require(m.sub_scale != nullptr && (m.offset == nullptr || m.sub_offset != nullptr), "sub-groups lack their factors");
}

// Whether every offset is the scale times minus the middle of the codes, as in formats with signed values; then the zero point
// replaces it for free.
bool is_symmetric(const appl_matrix& m) {
  if (m.layout < APPL_INT4 || m.offset == nullptr) return false;
  const appl_scale type = appl_scale(m.scale_type);
  if (m.sub_group_size != 0) {
    const size_t factors = size_t(m.rows) * size_t(m.columns / m.sub_group_size);
    if (std::memcmp(m.sub_offset, m.sub_scale, factors) != 0) return false;
  }
  const float middle = float(-centre(m.layout));
  const size_t count = size_t(m.rows) * size_t(m.columns / m.group_size);
  for (size_t i = 0; i < count; ++i) {
    if (scale_at(m.offset, type, i) != middle * scale_at(m.scale, type, i)) return false;
  }
  return true;
}

// The sizes that follow from a form. Every value of a form, which may come from a file, is checked here.
appl_weight describe(const appl_packed_form& form) {
  require(form.layout >= APPL_F32 && form.layout <= APPL_IQ4_NL, "a weight has an unknown layout");
  require(form.rows > 0 && form.columns > 0, "a weight has no elements");
  appl_weight w{};
  w.layout = appl_layout(form.layout);
  w.rows = form.rows;
  w.columns = form.columns;
  w.num_panels = int((int64_t{form.rows} + kPanel - 1) / kPanel);
  if (!w.is_quantized()) {
    w.padded_columns = int(round_up(size_t(form.columns), form.layout == APPL_BF16 ? 2 : 1));
    w.panel_bytes = size_t(w.padded_columns) * kPanel * (form.layout == APPL_F32 ? 4 : 2);
    return w;
  }
  check_groups(form.layout, form.columns, form.group_size, form.sub_group_size);
  check_scales(form.layout, form.scale_type, form.has_offset != 0);
  require((form.zero_point == centre(form.layout) && !is_coded(form.layout)) || (form.layout != APPL_INT8 && form.zero_point == 0),
          "a weight has an unknown zero point");
  w.padded_columns = int(round_up(size_t(form.columns), 8));
  w.group_size = form.group_size == form.columns ? w.padded_columns : form.group_size;
  w.num_groups = w.padded_columns / w.group_size;
  w.zero_point = form.zero_point;
  w.scale_type = appl_scale(form.scale_type);
  w.has_offset = form.has_offset != 0;
  w.sub_group_size = form.sub_group_size;
  w.header_bytes = w.sub_offset_at() + (w.has_offset ? size_t{kPanel} * size_t(w.num_sub_groups()) : 0);
  w.block_bytes = w.header_bytes + size_t(w.group_size) * kPanel * size_t(element_bits(form.layout)) / 8;
  w.panel_bytes = w.block_bytes * size_t(w.num_groups);
  return w;
}

// T is the unit that is moved: an element, or for bf16 a pair of columns. `columns` counts whole Ts of a row.
template <class T>
void pack_dense(const appl_matrix& m, int columns, int panel, uint8_t* to) {
  const int live = std::min(kPanel, m.rows - panel * kPanel);
  const size_t row_bytes = size_t(m.columns) * (m.layout == APPL_F32 ? 4 : 2);
  for (int lane = 0; lane < live; ++lane) {
    const uint8_t* row = static_cast<const uint8_t*>(m.data) + (size_t(panel) * kPanel + size_t(lane)) * row_bytes;
    uint8_t* out = to + size_t(lane) * sizeof(T);
    for (int k = 0; k < columns; ++k) std::memcpy(out + size_t(k) * kPanel * sizeof(T), row + size_t(k) * sizeof(T), sizeof(T));
  }
}

void pack_bf16(const appl_matrix& m, int panel, uint8_t* to) {
  pack_dense<uint32_t>(m, m.columns / 2, panel, to);
  if (m.columns % 2 == 0) return;
  const int live = std::min(kPanel, m.rows - panel * kPanel);
  const uint16_t* last = static_cast<const uint16_t*>(m.data) + size_t(panel) * kPanel * size_t(m.columns) + m.columns - 1;
  uint16_t* out = reinterpret_cast<uint16_t*>(to) + size_t(m.columns / 2) * kPanel * 2;
  for (int lane = 0; lane < live; ++lane) out[lane * 2] = last[size_t(lane) * size_t(m.columns)];
}

// Packs the factors of one row's sub-groups, two next to each other.
void pack_factors(const int8_t* factors, int count, int lane, uint8_t* to) {
  for (int i = 0; i < count; i += 2) std::memcpy(to + (i / 2 * kPanel + lane) * 2, factors + i, 2);
}

void pack_header(const appl_matrix& m, const appl_weight& w, size_t group_index, int lane, uint8_t* header) {
  const size_t size = scale_bytes(w.scale_type);
  const size_t at = size_t(lane) * size;
  const int count = w.num_sub_groups();
  std::memcpy(header + at, static_cast<const uint8_t*>(m.scale) + group_index * size, size);
  if (count != 0) pack_factors(m.sub_scale + group_index * size_t(count), count, lane, header + w.sub_scale_at());
  if (!w.has_offset) return;
  std::memcpy(header + kPanel * size + at, static_cast<const uint8_t*>(m.offset) + group_index * size, size);
  if (count != 0) pack_factors(m.sub_offset + group_index * size_t(count), count, lane, header + w.sub_offset_at());
}

// Four columns of a byte make a word of q + 128. Padding columns hold zero.
void pack_int8(const uint8_t* q, int live, int padded, int lane, uint8_t* data) {
  for (int k = 0; k < padded; k += 4) {
    uint32_t word = 0;
    std::memcpy(&word, q + k, size_t(std::clamp(live - k, 0, 4)));
    word ^= 0x80808080u;
    std::memcpy(data + size_t(k) * kPanel + size_t(lane) * 4, &word, 4);
  }
}

void pack_f8(const uint8_t* codes, int live, int lane, uint8_t* data) {
  for (int k = 0; k < live; ++k) data[(k / 2 * kPanel + lane) * 2 + k % 2] = codes[k];
}

// Puts the four nibbles of `v` into the low halves of four bytes.
uint32_t spread_nibbles(uint32_t v) {
  v = (v | v << 8) & 0x00ff00ffu;
  return (v | v << 4) & 0x0f0f0f0fu;
}

// Eight columns of int4 are four bytes, in order; packed, byte j holds column j low and column j + 4 high.
void pack_int4(const uint8_t* q, int live, int lane, uint8_t* data) {
  for (int k = 0; k < live; k += 8) {
    uint32_t word = 0;
    std::memcpy(&word, q + k / 2, size_t(std::min(live - k, 8) / 2));
    word = spread_nibbles(word & 0xffffu) | spread_nibbles(word >> 16) << 4;
    std::memcpy(data + size_t(k) / 2 * kPanel + size_t(lane) * 4, &word, 4);
  }
}

template <int Bits>
void pack_planes(const uint8_t* q, int columns, int lane, uint8_t* data) {
  using P = Planes<Bits>;
  for (int k = 0; k < columns; k += P::kColumns, data += P::kUnitBytes) P::put(q + k, data + lane * 4);
}

void pack_group(const appl_matrix& m, const appl_weight& w, size_t row, int lane, int group, uint8_t* block) {
  pack_header(m, w, row * size_t(w.num_groups) + size_t(group), lane, block);
  const int first = group * w.group_size, live = std::min(w.group_size, m.columns - first);
  const size_t element = row * size_t(m.columns) + size_t(first);
  uint8_t* data = block + w.header_bytes;
  const uint8_t* codes = static_cast<const uint8_t*>(m.data);
  if (m.layout == APPL_INT8) return pack_int8(codes + element, live, w.group_size, lane, data);
  if (m.layout == APPL_F8) return pack_f8(codes + element, live, lane, data);
  if (m.layout == APPL_INT5) return pack_planes<5>(codes + element, live, lane, data);
  if (m.layout == APPL_INT6) return pack_planes<6>(codes + element, live, lane, data);
  pack_int4(codes + element / 2, live, lane, data);
}

void pack_panel(const appl_matrix& m, const appl_weight& w, int panel, uint8_t* to) {
  switch (w.layout) {
    case APPL_F32: return pack_dense<uint32_t>(m, m.columns, panel, to);
    case APPL_F16: return pack_dense<uint16_t>(m, m.columns, panel, to);
    case APPL_BF16: return pack_bf16(m, panel, to);
    default: break;
  }
  const int live = std::min(kPanel, m.rows - panel * kPanel);
  for (int group = 0; group < w.num_groups; ++group) {
    for (int lane = 0; lane < live; ++lane) {
      pack_group(m, w, size_t(panel * kPanel + lane), lane, group, to + size_t(group) * w.block_bytes);
    }
  }
}

}  // namespace

appl_packed_form form_of(const appl_matrix& m, int num_rows) {
  check(m);
  const bool is_quantized = m.layout >= APPL_INT8, symmetric = is_symmetric(m);
  appl_packed_form form{};
  form.layout = m.layout;
  form.rows = num_rows;
  form.columns = m.columns;
  form.group_size = is_quantized ? m.group_size : 0;
  form.scale_type = is_quantized ? m.scale_type : 0;
  form.has_offset = is_quantized && m.offset != nullptr && !symmetric;
  form.zero_point = m.layout == APPL_INT8 || symmetric ? centre(m.layout) : 0;
  form.sub_group_size = is_quantized ? m.sub_group_size : 0;
  form.bytes = describe(form).bytes();
  return form;
}

appl_packed_form form_of(const appl_weight& w) {
  appl_packed_form form{};
  form.layout = w.layout;
  form.rows = w.rows;
  form.columns = w.columns;
  form.group_size = w.group_size == w.padded_columns ? w.columns : w.group_size;
  if (!w.is_quantized()) form.group_size = 0;
  form.scale_type = w.scale_type;
  form.has_offset = w.has_offset;
  form.zero_point = w.zero_point;
  form.sub_group_size = w.sub_group_size;
  form.bytes = w.bytes();
  return form;
}

appl_weight* reserve(appl_pool& pool, const appl_packed_form& form) {
  auto w = std::make_unique<appl_weight>(describe(form));
  w->data = pool.store.allocate(w->bytes());
  return w.release();
}

void fill(appl_weight& w, int first_row, const appl_matrix& m) {
  appl_packed_form form = form_of(m, w.rows), whole = form_of(w);
  if (!w.has_offset && form.has_offset) throw Error(APPL_UNSUPPORTED, "these rows need offsets, and the weight has none");
  form.has_offset = whole.has_offset;  // rows that do not need offsets keep them too
  form.zero_point = whole.zero_point;
  form.bytes = whole.bytes;
  require(std::memcmp(&form, &whole, sizeof(form)) == 0, "these rows have another form than their weight");
  require(!w.has_offset || m.offset != nullptr, "these rows lack offsets");
  require(first_row >= 0 && first_row % kPanel == 0 && int64_t{first_row} + m.rows <= w.rows,
          "rows lie outside of their weight, or begin within a panel");
  require(m.rows % kPanel == 0 || first_row + m.rows == w.rows, "rows end within a panel");
  uint8_t* to = w.data + size_t(first_row / kPanel) * w.panel_bytes;
  for (int panel = 0; panel * kPanel < m.rows; ++panel) pack_panel(m, w, panel, to + size_t(panel) * w.panel_bytes);
}

appl_weight* pack(appl_pool& pool, const appl_matrix& m) {
  std::unique_ptr<appl_weight> w(reserve(pool, form_of(m, m.rows)));
  parallel_for(pool, w->num_panels, int64_t{kPanel} * m.columns, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) pack_panel(m, *w, int(panel), w->data + size_t(panel) * w->panel_bytes);
  });
  return w.release();
}

appl_weight* adopt(const appl_packed_form& form, const void* data) {
  auto w = std::make_unique<appl_weight>(describe(form));
  require(form.bytes == w->bytes(), "a packed weight has another size than its form");
  require(data != nullptr && reinterpret_cast<uintptr_t>(data) % 64 == 0, "a packed weight is not aligned to 64 bytes");
  w->data = static_cast<uint8_t*>(const_cast<void*>(data));
  return w.release();
}

namespace {

int code_at(appl_layout layout, const uint8_t* data, int lane, int k) {
  if (layout == APPL_F8) return data[(k / 2 * kPanel + lane) * 2 + k % 2];
  data += lane * 4;
  if (element_bits(layout) == 8) return data[(k / 4) * kPanel * 4 + k % 4];
  if (element_bits(layout) == 4) return data[(k / 8) * kPanel * 4 + k % 4] >> (k % 8 / 4 * 4) & 15;
  using Five = Planes<5>;
  using Six = Planes<6>;
  if (layout == APPL_INT5) return Five::code(data + k / Five::kColumns * Five::kUnitBytes, k % Five::kColumns);
  return Six::code(data + k / Six::kColumns * Six::kUnitBytes, k % Six::kColumns);
}

float sub_group_factor(const uint8_t* factors, int sub_group, int lane) {
  return int8_t(factors[(sub_group / 2 * kPanel + lane) * 2 + sub_group % 2]);
}

void gather_quantized(const appl_weight& w, const uint8_t* panel, int lane, float scale, float* out) {
  const int size = w.sub_group_size == 0 ? w.group_size : w.sub_group_size;
  for (int first = 0; first < w.columns; first += size) {
    const uint8_t* block = panel + size_t(first / w.group_size) * w.block_bytes;
    const int begin = first % w.group_size, live = std::min(size, w.columns - first);
    float s = scale * scale_at(block, w.scale_type, size_t(lane));
    float offset = w.has_offset ? scale * scale_at(block, w.scale_type, size_t(kPanel + lane)) : 0.0f;
    if (w.sub_group_size != 0) {
      s *= sub_group_factor(block + w.sub_scale_at(), begin / size, lane);
      if (w.has_offset) offset *= sub_group_factor(block + w.sub_offset_at(), begin / size, lane);
    }
    for (int k = 0; k < live; ++k) {
      const int q = code_at(w.layout, block + w.header_bytes, lane, begin + k);
      const float value = is_coded(w.layout) ? value_of(w.layout, q) : float(q - w.zero_point);
      out[first + k] = value * s + offset;
    }
  }
}

}  // namespace

void gather_row(const appl_weight& w, int row, float scale, float* out) {
  const uint8_t* panel = w.panel(row / kPanel);
  const int lane = row % kPanel;
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(panel);
  switch (w.layout) {
    case APPL_F32:
      for (int k = 0; k < w.columns; ++k) out[k] = scale * reinterpret_cast<const float*>(panel)[k * kPanel + lane];
      return;
    case APPL_F16:
      for (int k = 0; k < w.columns; ++k) out[k] = scale * f16_to_float(halves[k * kPanel + lane]);
      return;
    case APPL_BF16:
      for (int k = 0; k < w.columns; ++k) out[k] = scale * bf16_to_float(halves[k / 2 * kPanel * 2 + lane * 2 + k % 2]);
      return;
    default: return gather_quantized(w, panel, lane, scale, out);
  }
}

}  // namespace appl
