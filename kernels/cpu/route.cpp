#include <cmath>

#include "activation.h"
#include "experts.h"

namespace appl {
namespace {

enum Standing : uint8_t { kFree, kExcluded, kChosen };

// One row: scores of all experts, what they are ranked by, and who is chosen.
class Choice {
 public:
  explicit Choice(const appl_route& op) : op_(op), count_(op.logits.width) {}

  void run(const float* logits, int32_t* experts, float* factors) {
    score(logits);
    const float* correction = op_.correction;
    for (int e = 0; e < count_; ++e) {
      ranked_[e] = correction == nullptr ? scores_[e] : scores_[e] + correction[e];
      standing_[e] = kFree;
    }
    if (op_.num_groups > 1) exclude_groups();
    const int chosen = op_.experts.width;
    for (int i = 0; i < chosen; ++i) {
      const int e = best(ranked_, standing_, 0, count_);
      if (op_.scoring == APPL_SCORING_SPARSEMIXER) scores_[e] = sparse_factor(e);
      standing_[e] = kChosen;
    }
    for (int e = 0, i = 0; e < count_; ++e) {
      if (standing_[e] != kChosen) continue;
      experts[i] = e;
      factors[i++] = scores_[e];
    }
    weigh(factors, chosen);
    if (op_.expert_scale == nullptr) return;
    for (int i = 0; i < chosen; ++i) factors[i] *= op_.expert_scale[experts[i]];
  }

 private:
  void score(const float* logits) {
    if (op_.scoring == APPL_SCORING_SIGMOID) return map(scores_, count_, [](Floats x) { return kept(x, vsigmoid(x)); }, logits);
    if (op_.scoring == APPL_SCORING_SOFTMAX) return softmax(logits, count_, scores_);
    std::copy(logits, logits + count_, scores_);
  }

  // What is no number stays none: exponentials make numbers of it.
  static Floats kept(Floats x, Floats result) { return x == x ? result : x; }

  static void softmax(const float* x, int count, float* out) {
    const float largest = *std::max_element(x, x + count);
    map(out, count, [largest](Floats v) { return kept(v - largest, vexp(v - largest)); }, x);
    divide(out, count, sum(out, count));
  }
  // The softmax of the expert's logit among those that are not chosen yet and have no much smaller one.
  float sparse_factor(int expert) const {
    const float most = ranked_[expert];
    float total = 0;
    for (int e = 0; e < count_; ++e) {
      const float logit = ranked_[e];
      const bool is_far = (most - logit) / std::max(std::abs(logit), most) > 2 * op_.jitter;
      if (standing_[e] == kFree && !is_far) total += std::exp(logit - most);
    }
    return 1.0f / total;
  }

  static float sum(const float* x, int count) {
    float total = 0;
    for (int i = 0; i < count; ++i) total += x[i];
    return total;
  }
  static void divide(float* x, int count, float by) {
    for (int i = 0; i < count; ++i) x[i] /= by;
  }

  // The first of the largest that are free. There is one; what is no number is less than any.
  static int best(const float* values, const Standing* standing, int begin, int end) {
    int found = -1;
    for (int i = begin; i < end; ++i) {
      if (standing[i] != kFree) continue;
      if (found < 0 || values[i] > values[found] || std::isnan(values[found])) found = i;
    }
    return found;
  }

  void exclude_groups() {
    const int groups = op_.num_groups, size = count_ / groups;
    float scores[kMaxExperts];
    Standing standing[kMaxExperts];
    for (int g = 0; g < groups; ++g) {
      scores[g] = group_score(g * size, (g + 1) * size);
      standing[g] = kFree;
    }
    for (int i = 0; i < op_.num_chosen_groups; ++i) standing[best(scores, standing, 0, groups)] = kChosen;
    for (int e = 0; e < count_; ++e) {
      if (standing[e / size] != kChosen) standing_[e] = kExcluded;
    }
  }

  float group_score(int begin, int end) {
    const int first = best(ranked_, standing_, begin, end);
    if (op_.adds_two == 0 || end - begin < 2) return ranked_[first];
    standing_[first] = kChosen;
    const int second = best(ranked_, standing_, begin, end);
    standing_[first] = kFree;
    return ranked_[first] + ranked_[second];
  }

  void weigh(float* factors, int count) const {
    if (op_.scoring == APPL_SCORING_SOFTMAX_OF_CHOSEN) softmax(factors, count, factors);
    if (op_.renormalize != 0) divide(factors, count, sum(factors, count));
    for (int i = 0; i < count; ++i) factors[i] *= op_.scale;
  }

  const appl_route& op_;
  const int count_;
  float scores_[kMaxExperts], ranked_[kMaxExperts];
  Standing standing_[kMaxExperts];
};

}  // namespace

void run_route(appl_pool& pool, const appl_route& op, int rows) {
  const auto at = [](const appl_span& span, int64_t row) { return span.data + size_t(row) * size_t(span.stride); };
  parallel_for(pool, rows, int64_t{op.logits.width} * op.experts.width, [&](int64_t begin, int64_t end) {
    Choice choice(op);
    for (int64_t row = begin; row < end; ++row) {
      choice.run(at(op.logits, row), reinterpret_cast<int32_t*>(at(op.experts, row)), at(op.factors, row));
    }
  });
}

}  // namespace appl
