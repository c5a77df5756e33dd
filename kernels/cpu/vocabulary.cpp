#include "vocabulary.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>

#include "simd.h"

namespace appl {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int kBlock = 4 * kWidth;
constexpr float kNearMaximum = 12.0f;  // tokens below e^-12 of the likeliest are rarely needed

bool comes_before(const Candidate& a, const Candidate& b) { return a.logit > b.logit || (a.logit == b.logit && a.id < b.id); }

// Calls body(first) for each block that has a logit >= floor, and for the rest after the last whole block.
template <class Body>
void for_blocks_reaching(const float* logits, int count, float floor, Body&& body) {
  int i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    const Floats best =
        vmax(vmax(load(logits + i), load(logits + i + kWidth)), vmax(load(logits + i + 2 * kWidth), load(logits + i + 3 * kWidth)));
    if (reduce_max(best) >= floor) body(i, i + kBlock);
  }
  if (i < count) body(i, count);
}

double mass_of(const Candidate& c, float maximum) { return std::exp(double(c.logit) - double(maximum)); }

// The index of the first candidate at which the running sum of weight(candidate) reaches `target`.
template <class Weight>
Cut cut_at(Candidates& candidates, double target, Weight&& weight) {
  sort_in_order(candidates);
  double sum = 0;
  for (const Candidate& c : candidates) {
    sum += weight(c);
    if (sum >= target) return {c.logit, c.id};
  }
  return {candidates.back().logit, candidates.back().id};
}

double mass_of_all(const Candidates& candidates, float maximum) {
  double sum = 0;
  for (const Candidate& c : candidates) sum += mass_of(c, maximum);
  return sum;
}

// Gathers the tokens that `cut` keeps near the maximum; all that it keeps if these do not satisfy `enough`.
template <class Enough>
void gather_enough(const float* logits, int count, float maximum, Cut cut, Candidates& out, Enough&& enough) {
  const float near = maximum - kNearMaximum;
  if (near > cut.logit) {
    gather(logits, count, {near, INT_MAX}, out);
    if (enough(out)) return;
  }
  gather(logits, count, cut, out);
}

}  // namespace

Extremum find_maximum(const float* logits, int count) {
  Floats best[4];
  Ints nan[4] = {};
  for (auto& b : best) b = splat(kMinusInfinity);
  int i = 0;
  for (; i + kBlock <= count; i += kBlock) {
    for (int j = 0; j < 4; ++j) {
      const Floats v = load(logits + i + j * kWidth);
      best[j] = vmax(v, best[j]);
      nan[j] |= Ints(v != v);
    }
  }
  Extremum result{reduce_max(vmax(vmax(best[0], best[1]), vmax(best[2], best[3]))), false};
  const Ints any = nan[0] | nan[1] | nan[2] | nan[3];
  for (int lane = 0; lane < kWidth; ++lane) result.has_nan |= any[lane] != 0;
  for (; i < count; ++i) {
    result.value = std::max(result.value, logits[i]);
    result.has_nan |= std::isnan(logits[i]);
  }
  return result;
}

int find_first(const float* logits, int count, float value) {
  int found = count;
  for_blocks_reaching(logits, count, value, [&](int begin, int end) {
    for (int i = begin; i < end && found == count; ++i) {
      if (logits[i] == value) found = i;
    }
  });
  return found;
}

int64_t count_above(const float* logits, int count, float value) {
  int64_t total = 0;
  for (int i = 0; i < count; ++i) total += logits[i] > value;
  return total;
}

double sum_of_exponentials(const float* logits, int count, float maximum, float floor) {
  double total = 0;
  int i = 0;
  while (i + kWidth <= count) {
    Floats sum{};  // short runs in f32, summed in double
    for (int end = std::min(count - kWidth, i + 64 * kWidth); i <= end; i += kWidth) {
      const Floats v = load(logits + i);
      const Floats e = vexp(v - maximum);
      sum += v >= floor ? e : Floats{};
    }
    total += double(reduce_add(sum));
  }
  for (; i < count; ++i) total += logits[i] >= floor ? std::exp(double(logits[i]) - double(maximum)) : 0.0;
  return total;
}

void gather(const float* logits, int count, Cut cut, Candidates& out) {
  out.clear();
  for_blocks_reaching(logits, count, cut.logit, [&](int begin, int end) {
    for (int i = begin; i < end; ++i) {
      if (cut.keeps(logits[i], i)) out.push_back({logits[i], i});
    }
  });
}

void sort_in_order(Candidates& candidates) { std::sort(candidates.begin(), candidates.end(), comes_before); }

Cut keep_first(const float* logits, int count, float maximum, Cut cut, int64_t k, Candidates& scratch) {
  gather_enough(logits, count, maximum, cut, scratch, [k](const Candidates& c) { return int64_t(c.size()) >= k; });
  if (int64_t(scratch.size()) < k) return cut;  // all that it keeps; if there are k of them, they may be only the near ones
  const auto last = scratch.begin() + (k - 1);
  std::nth_element(scratch.begin(), last, scratch.end(), comes_before);
  return {last->logit, last->id};
}

Cut keep_mass(const float* logits, int count, float maximum, Cut cut, float p, Candidates& scratch) {
  double total = 0;
  if (cut.id == INT_MAX) {
    total = sum_of_exponentials(logits, count, maximum, cut.logit);
  } else {
    gather(logits, count, cut, scratch);
    total = mass_of_all(scratch, maximum);
  }
  const double target = double(p) * total;
  gather_enough(logits, count, maximum, cut, scratch, [&](const Candidates& c) { return mass_of_all(c, maximum) >= target * (1 + 1e-6); });
  return cut_at(scratch, target, [maximum](const Candidate& c) { return mass_of(c, maximum); });
}

}  // namespace appl
