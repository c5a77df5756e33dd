// Sampling over rows of logits; the order of processing is in appliance.kernels.sampling.
#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <vector>

#include "appliance_abi.h"
#include "pool.h"
#include "simd.h"
#include "status.h"
#include "vocabulary.h"

namespace appl {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr int kNone = -1;

// Philox4x32-10 (Salmon et al. 2011): 53 bits of its first two words as a number in [0, 1).
double philox_uniform(uint64_t seed, uint64_t position) {
  uint32_t key[2] = {uint32_t(seed), uint32_t(seed >> 32)};
  uint32_t counter[4] = {uint32_t(position), uint32_t(position >> 32), 0, 0};
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0], second = uint64_t{0xCD9E8D57} * counter[2];
    const uint32_t next[4] = {uint32_t(second >> 32) ^ counter[1] ^ key[0], uint32_t(second), uint32_t(first >> 32) ^ counter[3] ^ key[1],
                              uint32_t(first)};
    std::copy(next, next + 4, counter);
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return double((uint64_t(counter[0]) << 21) | (counter[1] >> 11)) * 0x1p-53;
}

// A thread's memory, kept from call to call.
struct Scratch {
  std::vector<float> logits;
  std::vector<uint32_t> counts;  // all zero between rows
  Candidates candidates;
};

class RowSampler {
 public:
  RowSampler(const appl_sampling& s, int row, Scratch& scratch)
      : s_(s), row_(row), scratch_(scratch), raw_(s.logits + size_t(row) * size_t(s.logits_stride)), size_(s.vocab_size) {}

  void run() {
    const Extremum raw = find_maximum(raw_, size_);
    if (raw.has_nan) return;
    greedy_ = !(s_.temperature[row_] > 0);
    logits_ = raw_;
    maximum_ = raw.value;
    if (is_adjusted()) adjust();
    if (!greedy_) filter();
    const int token = choose();
    if (token == kNone) return;
    s_.token_ids[row_] = token;
    if (s_.num_logprobs[row_] >= 0) write_logprobs(token, raw.value);
  }

 private:
  bool has_penalty() const { return s_.repetition_penalty[row_] != 1 || s_.presence_penalty[row_] != 0 || s_.frequency_penalty[row_] != 0; }
  bool is_adjusted() const {
    return s_.mask_row[row_] != kNone || s_.forbidden_start[row_ + 1] > s_.forbidden_start[row_] ||
           s_.bias_start[row_ + 1] > s_.bias_start[row_] || has_penalty() || (!greedy_ && s_.temperature[row_] != 1);
  }

  void adjust() {
    scratch_.logits.assign(raw_, raw_ + size_);
    float* logits = scratch_.logits.data();
    if (s_.mask_row[row_] != kNone) apply_mask(logits);
    for (int i = s_.forbidden_start[row_]; i < s_.forbidden_start[row_ + 1]; ++i) logits[s_.forbidden_ids[i]] = kMinusInfinity;
    for (int i = s_.bias_start[row_]; i < s_.bias_start[row_ + 1]; ++i) logits[s_.bias_ids[i]] += s_.bias_values[i];
    if (has_penalty()) apply_penalties(logits);
    if (!greedy_) {
      const float temperature = s_.temperature[row_];
      int i = 0;
      for (; i + kWidth <= size_; i += kWidth) store(logits + i, load(logits + i) / temperature);
      for (; i < size_; ++i) logits[i] /= temperature;
    }
    logits_ = logits;
    maximum_ = find_maximum(logits, size_).value;
  }

  void apply_mask(float* logits) const {
    const uint32_t* words = s_.mask_bits + size_t(s_.mask_row[row_]) * size_t(s_.mask_stride);
    for (int first = 0; first < size_; first += 32) {
      const uint32_t word = words[first / 32];
      if (word == UINT32_MAX) continue;
      const int end = std::min(first + 32, size_);
      for (int i = first; i < end; ++i) {
        if (((word >> (i - first)) & 1) == 0) logits[i] = kMinusInfinity;
      }
    }
  }

  // Counts tokens in the thread's table: the top bit says that a token was seen, the others count it in the output.
  void apply_penalties(float* logits) {
    constexpr uint32_t kSeen = 1u << 31;
    scratch_.counts.resize(size_t(size_));
    uint32_t* counts = scratch_.counts.data();
    const int32_t* tokens = s_.token_table + size_t(s_.token_row[row_]) * size_t(s_.token_table_stride);
    const float repetition = s_.repetition_penalty[row_];
    for (int i = 0; i < s_.num_tokens[row_]; ++i) {
      const int token = tokens[i];
      if (token < 0) continue;
      if (counts[token] == 0) logits[token] = logits[token] > 0 ? logits[token] / repetition : logits[token] * repetition;
      counts[token] |= kSeen;
      if (i >= s_.num_prompt_tokens[row_]) ++counts[token];
    }
    for (int i = 0; i < s_.num_tokens[row_]; ++i) {
      const int token = tokens[i];
      if (token < 0) continue;
      const uint32_t count = counts[token] & ~kSeen;
      counts[token] = 0;
      if (count == 0) continue;
      logits[token] -= float(count) * s_.frequency_penalty[row_];
      logits[token] -= s_.presence_penalty[row_];
    }
  }

  void filter() {
    cut_ = {kLowest, INT_MAX};
    if (!(maximum_ > kMinusInfinity)) return;
    if (s_.min_p[row_] > 0) cut_.logit = std::max(kLowest, maximum_ + std::log(s_.min_p[row_]));
    if (s_.top_k[row_] > 0 && s_.top_k[row_] < size_) {
      cut_ = keep_first(logits_, size_, maximum_, cut_, s_.top_k[row_], scratch_.candidates);
    }
    if (s_.top_p[row_] < 1) cut_ = keep_mass(logits_, size_, maximum_, cut_, s_.top_p[row_], scratch_.candidates);
  }

  int choose() {
    if (s_.given_token_ids[row_] != kNone) return s_.given_token_ids[row_];
    if (!(maximum_ > kMinusInfinity)) return kNone;
    if (greedy_) return find_first(logits_, size_, maximum_);
    const double uniform = philox_uniform(s_.seed[row_], s_.position[row_]);
    return is_filtered() ? draw_from_candidates(uniform) : draw_from_all(uniform);
  }

  bool is_filtered() const { return cut_.logit > kLowest; }

  // Both draw functions invert the cumulative distribution in the order of ids.
  int draw_from_candidates(double uniform) {
    Candidates& kept = scratch_.candidates;
    gather(logits_, size_, cut_, kept);
    double total = 0;
    for (const Candidate& c : kept) total += std::exp(double(c.logit) - double(maximum_));
    const double target = uniform * total;
    double sum = 0;
    for (const Candidate& c : kept) {
      sum += std::exp(double(c.logit) - double(maximum_));
      if (sum > target) return c.id;
    }
    return kept.back().id;
  }

  int draw_from_all(double uniform) const {
    constexpr int kStretch = 1024;
    const double target = uniform * sum_in_stretches(kStretch, [](double, int) { return false; });
    int begin = 0;
    double before = 0;
    sum_in_stretches(kStretch, [&](double sum, int first) {
      if (sum > target) return true;
      before = sum;
      begin = first + kStretch;
      return false;
    });
    int last = kNone;
    for (int i = std::min(begin, size_ - 1); i < size_; ++i) {
      const double mass = std::exp(double(logits_[i]) - double(maximum_));
      if (mass == 0) continue;
      before += mass;
      last = i;
      if (before > target) return i;
    }
    return last == kNone ? find_first(logits_, size_, maximum_) : last;
  }

  // Sums over all tokens; stops when stop(sum so far, first id of the range) is true.
  template <class Stop>
  double sum_in_stretches(int stretch, Stop&& stop) const {
    double sum = 0;
    for (int first = 0; first < size_; first += stretch) {
      sum += sum_of_exponentials(logits_ + first, std::min(stretch, size_ - first), maximum_, kLowest);
      if (stop(sum, first)) break;
    }
    return sum;
  }

  void write_logprobs(int token, float raw_maximum) {
    const bool raw = s_.raw_logprobs != 0;
    if (!raw && !greedy_ && is_filtered()) drop_filtered();
    const float* source = raw ? raw_ : logits_;
    const float maximum = raw ? raw_maximum : maximum_;
    const double norm = s_.normalize == 0 || !(maximum > kMinusInfinity)
                            ? 0.0
                            : double(maximum) + std::log(sum_of_exponentials(source, size_, maximum, kLowest));
    int32_t* ids = s_.logprob_ids + size_t(row_) * size_t(s_.logprobs_stride);
    float* values = s_.logprobs + size_t(row_) * size_t(s_.logprobs_stride);
    ids[0] = token;
    values[0] = float(double(source[token]) - norm);
    s_.ranks[row_] = int32_t(1 + count_above(source, size_, source[token]));
    const int count = std::min(s_.num_logprobs[row_], size_);
    if (count == 0) return;
    Candidates& best = scratch_.candidates;
    const Cut all{kMinusInfinity, INT_MAX};
    gather(source, size_, keep_first(source, size_, maximum, all, count, best), best);
    sort_in_order(best);
    for (int i = 0; i < count; ++i) {
      ids[i + 1] = best[size_t(i)].id;
      values[i + 1] = float(double(best[size_t(i)].logit) - norm);
    }
  }

  void drop_filtered() {
    if (logits_ == raw_) scratch_.logits.assign(raw_, raw_ + size_);
    float* logits = scratch_.logits.data();
    for (int i = 0; i < size_; ++i) {
      if (!cut_.keeps(logits[i], i)) logits[i] = kMinusInfinity;
    }
    logits_ = logits;
  }

  const appl_sampling& s_;
  const int row_;
  Scratch& scratch_;
  const float* raw_;
  const int size_;
  const float* logits_ = nullptr;  // adjusted, and divided by the temperature
  float maximum_ = kMinusInfinity;
  bool greedy_ = true;
  Cut cut_{kLowest, INT_MAX};
};

void check_ids(const int32_t* start, const int32_t* ids, int rows, int size) {
  for (int row = 0; row < rows; ++row) {
    require(start[row] >= 0 && start[row] <= start[row + 1], "sampling: ranges do not follow each other");
    for (int i = start[row]; i < start[row + 1]; ++i) {
      require(ids[i] >= 0 && ids[i] < size, "sampling: a token id is outside the vocabulary");
    }
  }
}

void check(const appl_sampling& s) {
  require(s.num_rows >= 0 && s.vocab_size > 0, "sampling: no vocabulary");
  check_ids(s.bias_start, s.bias_ids, s.num_rows, s.vocab_size);
  check_ids(s.forbidden_start, s.forbidden_ids, s.num_rows, s.vocab_size);
  for (int row = 0; row < s.num_rows; ++row) {
    const int given = s.given_token_ids[row];
    require(given >= kNone && given < s.vocab_size, "sampling: a given token is outside the vocabulary");
    require(s.num_logprobs[row] < s.logprobs_stride || s.num_logprobs[row] < 0, "sampling: no room for log-probabilities");
    if (s.repetition_penalty[row] == 1 && s.presence_penalty[row] == 0 && s.frequency_penalty[row] == 0) continue;
    require(s.num_tokens[row] <= s.token_table_stride, "sampling: a row has more tokens than its table");
    const int32_t* tokens = s.token_table + size_t(s.token_row[row]) * size_t(s.token_table_stride);
    for (int i = 0; i < s.num_tokens[row]; ++i) {
      require(tokens[i] >= kNone && tokens[i] < s.vocab_size, "sampling: a past token is outside the vocabulary");
    }
  }
}

}  // namespace
}  // namespace appl

int32_t appl_sample(appl_pool* pool, const appl_sampling* sampling) {
  return appl::guarded([&] {
    appl::check(*sampling);
    const auto sample = [&](int64_t begin, int64_t end) {
      static thread_local appl::Scratch scratch;
      for (int64_t row = begin; row < end; ++row) appl::RowSampler(*sampling, int(row), scratch).run();
    };
    appl::parallel_for(*pool, sampling->num_rows, sampling->vocab_size, sample, 1);
  });
}
