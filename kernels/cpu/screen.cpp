// Let a weight's row be w = c + e (codes times scale, and the rounding error), and an input likewise x = y + f. Then w.x - c.y = e.x + c.f,
// which the Cauchy-Schwarz inequality bounds by |e| |x| + |c| |f|. If a row needs its n largest outputs, an output stays approximate if its
// upper bound is below the lower bounds of n others.
#include "screen.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "planes.h"
#include "simd.h"
#include "status.h"
#include "vocabulary.h"

namespace appl {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();
constexpr float kLeastWeight = 1e-28f, kMostWeight = 1e15f;  // of rounded values: inverses of scales and sums of squares stay finite
constexpr float kMostHalf = 65504.0f;
constexpr int kWordPanels = 32;       // one bit for each panel
constexpr float kUnderflow = 2e-20f;  // bounds what norms lose to underflow in f32; its square bounds what products lose

// The relative error of sums in f32. Bounds that differ by more stay different when they are divided by a temperature.
float sum_error(int columns) { return float(columns + kPanel) * 0x1p-22f; }

// An upper bound of a norm that was summed in f32.
float at_most(float norm, int columns) { return norm * (1 + sum_error(columns)) + kUnderflow; }

int words_of(const appl_weight& weight) { return (weight.num_panels + kWordPanels - 1) / kWordPanels; }

// The bytes of a thread's memory: bounds of words, or the rows of a panel.
size_t own_bytes(const appl_weight& weight, const PreparedShape& input) {
  return round_up(std::max(size_t(words_of(weight)) * (kWidth + 1) * sizeof(float), input.bytes(kMaxPanelRows)), 64);
}

// Column k of a weight of 16 or 32 bits: lanes first .. first + kWidth of a panel.
Floats dense_column(const appl_weight& w, const uint8_t* panel, int k, int first) {
  const size_t at = size_t(k) * kPanel + size_t(first);
  if (w.layout == APPL_F32) return load(panel + at * sizeof(float));
  if (w.layout == APPL_F16) return f16_to_floats(load<Halves>(panel + at * sizeof(uint16_t)));
  const Words pairs = load<Words>(panel + (size_t(k / 2) * kPanel + size_t(first)) * sizeof(uint32_t));
  return bit_cast<Floats>(k % 2 == 0 ? pairs << 16 : pairs & 0xffff0000u);
}

// Writes the scales of lanes first .. first + kWidth into a header. Returns them as they are read.
Floats store_scale(Floats scale, bool as_f32, uint8_t* header, int first) {
  if (as_f32) {
    store(header + size_t(first) * sizeof(float), scale);
    return scale;
  }
  const Halves halves = floats_to_f16(scale);
  store(header + size_t(first) * sizeof(uint16_t), halves);
  return f16_to_floats(halves);
}

// Columns from `begin` on of the rows in lanes first .. first + kWidth of a panel: the columns of one group if the weight has groups.
class GroupColumns {
 public:
  GroupColumns(const appl_weight& w, const uint8_t* panel, int begin, int first) : w_(w), panel_(panel), begin_(begin), first_(first) {
    if (w.layout != APPL_INT8) return;
    const uint8_t* const block = panel + size_t(begin / w.group_size) * w.block_bytes;
    codes_ = block + w.header_bytes + size_t(begin % w.group_size) * kPanel + size_t(first) * 4;
    scale_ = load_scales(block, w.scale_type, first / kWidth);
    if (w.has_offset) offset_ = load_offsets(block, w.scale_type, first / kWidth);
  }

  // Columns k to k + 3 of them; past the end they are zero.
  void load_four(int k, Floats (&out)[4]) const {
    if (codes_ != nullptr) {
      const Words codes = load<Words>(codes_ + size_t(k) * kPanel);
      for (int i = 0; i < 4; ++i) out[i] = to_floats(Ints(codes >> (8 * i) & 0xffu) - 128) * scale_ + offset_;
      return;
    }
    for (int i = 0; i < 4; ++i) {
      const int column = begin_ + k + i;
      out[i] = column < w_.columns ? dense_column(w_, panel_, column, first_) : Floats{};
    }
  }

 private:
  const appl_weight& w_;
  const uint8_t *panel_, *codes_ = nullptr;  // of int8
  int begin_, first_;
  Floats scale_{}, offset_{};
};

// Puts four columns' codes of the rows from lane `first` on into a group's data; k counts from its first column.
void put_codes(appl_layout layout, uint8_t* data, int k, int first, Words codes) {
  data += size_t(first) * 4;
  if (layout == APPL_INT8) return store(data + size_t(k) * kPanel, codes);
  using P = Planes<6>;
  uint8_t* const unit = data + size_t(k / P::kColumns) * P::kUnitBytes;
  const int step = k % P::kColumns / 4;
  uint8_t* const nibbles = unit + (1 + step / 2) * P::kLineBytes;
  store(unit, load<Words>(unit) | (codes >> 4 & P::kHighMask >> 4) << (P::kHigh * step));
  store(nibbles, load<Words>(nibbles) | (codes & 0x0f0f0f0fu) << (step % 2 * 4));
}

// Rounds some rows of a panel, one per lane, into the zeroed copy, and sums the squares of scale * codes and of the rounding errors.
class RowRounding {
 public:
  RowRounding(const appl_weight& weight, const appl_weight& copy, int panel, int first)
      : w_(weight), copy_(copy), from_(weight.panel(panel)), to_(copy.data + size_t(panel) * copy.panel_bytes), first_(first),
        most_(splat(copy.layout == APPL_INT8 ? 127.0f : 31.0f)),
        most_weight_(copy.scale_type == APPL_SCALE_F32 ? kMostWeight : kMostHalf * most_[0]) {}

  void run() {
    uint8_t* to = to_;
    for (int begin = 0; begin < copy_.padded_columns; begin += copy_.group_size, to += copy_.block_bytes) round_group(begin, to);
  }

  // Writes the norms. The lost norm of a lane with numbers that have no bound is infinite.
  void write_norms(float* norms, float* lost) const {
    for (int lane = 0; lane < kWidth; ++lane) {
      const bool is_known = is_usable_[lane] != 0 && kept_[lane] < kInfinite && rest_[lane] < kInfinite;
      norms[lane] = is_known ? at_most(std::sqrt(kept_[lane]), w_.columns) : 0;
      lost[lane] = is_known ? at_most(std::sqrt(rest_[lane]), w_.columns) : kInfinite;
    }
  }

 private:
  // The bits of a group's largest magnitude: infinity and NaN are above all others.
  Ints largest_bits(const GroupColumns& columns) const {
    Ints bits{};
    Floats values[4];
    for (int k = 0; k < copy_.group_size; k += 4) {
      columns.load_four(k, values);
      for (const Floats& each : values) {
        const Ints next = bit_cast<Ints>(each) & 0x7fffffff;
        bits = next > bits ? next : bits;
      }
    }
    return bits;
  }

  void round_group(int begin, uint8_t* to) {
    const Floats none{};
    const GroupColumns columns(w_, from_, begin, first_);
    const Ints bits = largest_bits(columns), is_finite = bits < bit_cast<int32_t>(kMostWeight);
    const Ints has_scale = (bits < bit_cast<int32_t>(most_weight_)) & (bits > bit_cast<int32_t>(kLeastWeight));
    const Floats wanted = has_scale ? bit_cast<Floats>(bits) / most_ : none;
    const Floats scale = store_scale(wanted, copy_.scale_type == APPL_SCALE_F32, to, first_), inverse = scale > none ? 1.0f / scale : none;
    is_usable_ &= is_finite;
    Floats values[4];
    for (int k = 0; k < copy_.group_size; k += 4) {
      columns.load_four(k, values);
      Words codes{};
      for (int i = 0; i < 4; ++i) {
        const Floats value = is_finite ? values[i] : none;
        const Ints q = round_to_ints(vmin(vmax(value * inverse, -most_), most_));
        const Floats c = to_floats(q) * scale, e = value - c;
        codes |= Words(q + copy_.zero_point) << (8 * i);
        kept_ += c * c;
        rest_ += e * e;
      }
      put_codes(copy_.layout, to + copy_.header_bytes, k, first_, codes);
    }
  }

  const appl_weight &w_, &copy_;
  const uint8_t* const from_;
  uint8_t* const to_;
  const int first_;
  const Floats most_;        // the largest code
  const float most_weight_;  // the largest value that has a scale
  Floats kept_{}, rest_{};
  Ints is_usable_ = ~Ints{};
};

void round_rows(const appl_weight& w, int panel, int first, appl_screen& screen) {
  RowRounding rounding(w, *screen.codes, panel, first);
  rounding.run();
  const size_t at = size_t(panel) * kPanel + size_t(first);
  rounding.write_norms(screen.norms.data() + at, screen.lost.data() + at);
}

// The bound on the distance of a row's outputs from their approximations.
struct Slack {
  float of_norm, of_lost;

  // The bound of one output or a vector of them, from the weight's norms.
  template <class T>
  T at_most(T norm, T lost) const {
    return norm * of_norm + lost * of_lost;
  }
  bool is_known() const { return of_norm < kInfinite && of_lost < kInfinite; }  // neither is NaN
};

Slack slack_of(const ScreenedCall& call, int row) {
  const float* x = call.x.data + size_t(row) * size_t(call.x.stride);
  const RowNorms norms = row_norms(call.rounded.shape, call.input.shape.form, x);
  const int columns = call.weight->columns;
  const float whole = at_most(norms.whole, columns), in_products = whole * sum_error(columns);
  return {at_most(norms.lost, columns) + in_products, whole + in_products};
}

class Screening {
 public:
  explicit Screening(const ScreenedCall& call)
      : call_(call), weight_(*call.weight), num_words_(words_of(weight_)), marks_(reinterpret_cast<uint32_t*>(call.scratch)),
        own_(call.scratch + round_up(size_t(call.input.rows) * size_t(num_words_) * sizeof(uint32_t), 64)) {}

  int num_words() const { return num_words_; }

  // The share of marked panels among those of all rows.
  float marked_share() const {
    int64_t marks = 0;
    for (int i = 0; i < call_.input.rows * num_words_; ++i) marks += std::popcount(marks_[i]);
    return float(marks) / float(int64_t{call_.input.rows} * weight_.num_panels);
  }

  // Marks the panels that may have the row's largest outputs.
  void mark(int row, int thread) const {
    uint32_t* const marks = marks_ + size_t(row) * size_t(num_words_);
    const int count = call_.step.num_largest[row];
    if (count == 0) return mark_all(marks);
    float* const upper = reinterpret_cast<float*>(own(thread));
    const Slack slack = slack_of(call_, row);
    const float least = slack.is_known() ? least_wanted(row, slack, count, upper) : -kInfinite;
    if (!std::isfinite(least)) return mark_all(marks);
    for (int word = 0; word < num_words_; ++word) {
      marks[word] = 0;
      if (upper[word] < least) continue;
      for_panels(row, word, slack, [&](int bit, Floats high, Floats) { marks[word] |= uint32_t(reduce_max(high) >= least) << bit; });
    }
  }

  // Computes the marked panels of a word, each for all rows that need it.
  void compute(int word, int thread) const {
    uint32_t any = 0;
    for (int row = 0; row < call_.input.rows; ++row) any |= marked(row, word);
    while (any != 0) {
      const int bit = std::countr_zero(any), panel = word * kWordPanels + bit;
      any &= any - 1;
      const int next = any != 0 ? word * kWordPanels + std::countr_zero(any) : panel;
      int rows[kMaxPanelRows], count = 0;
      for (int row = 0; row < call_.input.rows; ++row) {
        if ((marked(row, word) >> bit & 1) == 0) continue;
        rows[count++] = row;
        if (count < kMaxPanelRows) continue;
        compute(panel, next, rows, count, thread);
        count = 0;
      }
      if (count > 0) compute(panel, next, rows, count, thread);
    }
  }

 private:
  void mark_all(uint32_t* marks) const {
    for (int word = 0; word < num_words_; ++word) {
      marks[word] = UINT32_MAX >> (kWordPanels - std::min(kWordPanels, weight_.num_panels - word * kWordPanels));
    }
  }

  // Removes the bound of a lane of a word in which a past token may be the best.
  void drop_past(int row, const Slack& slack, float* lower) const {
    const appl_step& step = call_.step;
    if (step.num_past == nullptr) return;
    const float* const out = call_.out + size_t(row) * size_t(call_.out_stride);
    const int32_t* const ids = step.past_table + size_t(step.past_row[row]) * size_t(step.past_stride);
    for (int i = 0; i < step.num_past[row]; ++i) {
      const int id = ids[i] - call_.first_token;
      if (id < 0 || id >= weight_.rows) continue;
      const float high = out[id] + slack.at_most(call_.screen->norms[size_t(id)], call_.screen->lost[size_t(id)]);
      float& best = lower[id / (kWordPanels * kPanel) * kWidth + id % kWidth];
      if (high >= best) best = -kInfinite;
    }
  }

  // Returns a bound: smaller outputs are not among the row's `count` largest; it is infinite if that is not known. Writes upper bounds by
  // word, and after them the best lower bound of each lane of a word; the count-th largest of these is a valid bound for the row.
  float least_wanted(int row, const Slack& slack, int count, float* upper) const {
    float* const lower = upper + num_words_;
    for (int word = 0; word < num_words_; ++word) {
      Floats most = splat(-kInfinite), least = splat(-kInfinite);
      for_panels(row, word, slack, [&](int, Floats high, Floats low) {
        most = vmax(high, most);
        least = vmax(low, least);
      });
      upper[word] = reduce_max(most);
      store(lower + word * kWidth, least);
    }
    drop_past(row, slack, lower);
    const int size = num_words_ * kWidth;
    if (count > size) return -kInfinite;
    if (count > 1) std::nth_element(lower, lower + count - 1, lower + size, std::greater<>());
    return count > 1 ? lower[count - 1] : find_maximum(lower, size).value;
  }

  uint8_t* own(int thread) const { return own_ + size_t(thread) * own_bytes(weight_, call_.input.shape); }
  uint32_t marked(int row, int word) const { return marks_[size_t(row) * size_t(num_words_) + size_t(word)]; }

  // Calls body(panel, upper bounds, lower bounds) for the vectors of a word's panels, counted from its first.
  template <class Body>
  void for_panels(int row, int word, const Slack& slack, Body&& body) const {
    const float* const out = call_.out + size_t(row) * size_t(call_.out_stride);
    const float *const norms = call_.screen->norms.data(), *const lost = call_.screen->lost.data();
    const int first = word * kWordPanels, end = std::min(first + kWordPanels, weight_.num_panels);
    for (int panel = first; panel < end; ++panel) {
      const int at = panel * kPanel, live = weight_.rows - at;
      float last[kPanel];
      if (live < kPanel) std::fill(std::copy(out + at, out + weight_.rows, last), last + kPanel, -kInfinite);
      const float* const values = live < kPanel ? last : out + at;
      for (int k = 0; k < kPanel; k += kWidth) {
        const Floats value = load(values + k);
        const Floats far = slack.at_most(load(norms + at + k), load(lost + at + k));
        body(panel - first, value + far, value - far);
      }
    }
  }

  // Gathers the rows first, so that a panel is read once for all of them.
  void compute(int panel, int next, const int* rows, int count, int thread) const {
    const Prepared together = prepared_at(call_.input.shape, count, own(thread));
    for (int i = 0; i < count; ++i) copy_row(call_.input, rows[i], together, i);
    alignas(64) float sums[kMaxPanelRows * kPanel];
    run_panel(weight_, together, panel, next, sums);
    const int first = panel * kPanel, live = std::min(kPanel, weight_.rows - first);
    for (int i = 0; i < count; ++i) {
      std::copy_n(sums + i * kPanel, live, call_.out + size_t(rows[i]) * size_t(call_.out_stride) + first);
    }
  }

  const ScreenedCall& call_;
  const appl_weight& weight_;
  const int num_words_;
  uint32_t* const marks_;  // [row][word]
  uint8_t* const own_;     // [thread]
};

// The form of the copy: for 16 or 32 bits int8 with one scale per row; for int8 six bits, in the groups of its input, which then is
// rounded only once.
appl_packed_form copy_form(const appl_weight& weight) {
  require(!weight.is_quantized() || weight.layout == APPL_INT8, "a weight of less than 8 bits has no screen");
  appl_packed_form form{};
  form.rows = weight.rows;
  form.columns = weight.columns;
  if (weight.is_quantized()) {
    form.layout = APPL_INT6;
    form.group_size = std::min(weight.group_size, kMaxActivationGroup);
    form.zero_point = 32;
  } else {
    form.layout = APPL_INT8;
    form.group_size = weight.columns;
    form.scale_type = APPL_SCALE_F32;
    form.zero_point = 128;
  }
  return form;
}

}  // namespace

appl_screen* make_screen(appl_pool& pool, const appl_weight& weight) {
  const appl_packed_form form = copy_form(weight);
  auto screen = std::make_unique<appl_screen>();
  screen->codes.reset(reserve(pool, form));
  screen->norms.resize(size_t(weight.num_panels) * kPanel);
  screen->lost.resize(size_t(weight.num_panels) * kPanel);
  parallel_for(pool, weight.num_panels, int64_t{kPanel} * weight.columns, [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) {
      for (int lane = 0; lane < kPanel; lane += kWidth) round_rows(weight, int(panel), lane, *screen);
    }
  });
  return screen.release();
}

PreparedShape screen_shape(const appl_screen& screen) { return input_shape(*screen.codes, true); }

size_t screen_scratch_bytes(const appl_weight& weight, const PreparedShape& input, int rows, int threads) {
  return size_t(rows) * size_t(words_of(weight)) * sizeof(uint32_t) + 64 + size_t(threads) * own_bytes(weight, input);
}

bool run_screened(appl_pool& pool, const ScreenedCall& call) {
  const int rows = call.input.rows;
  run_linear(pool, {call.screen->codes.get(), call.rounded, nullptr, call.out, call.out_stride, nullptr, APPL_ACTIVATION_NONE, false});
  const Screening screening(call);
  const auto mark = [&](int64_t begin, int64_t end, int thread) {
    for (int64_t row = begin; row < end; ++row) screening.mark(int(row), thread);
  };
  parallel_for(pool, rows, call.weight->rows, mark, 1);
  constexpr int kCrowd = 4;  // rows that share the reading of a panel when all outputs are computed
  const float share = screening.marked_share();
  if (share > (rows < kCrowd ? 1.0f / 4 : 1.0f / 8)) {
    run_linear(pool, {call.weight, call.input, nullptr, call.out, call.out_stride, nullptr, APPL_ACTIVATION_NONE, false});
    return false;
  }
  parallel_for(pool, screening.num_words(), int64_t{rows} * call.weight->columns * kPanel, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t word = begin; word < end; ++word) screening.compute(int(word), thread);
  });
  constexpr float kGained = 1.0f / 16;  // above this share of marked panels, the gain of reading a quarter fewer bytes is lost
  return call.screen->saves_half() || share <= kGained;
}

}  // namespace appl
