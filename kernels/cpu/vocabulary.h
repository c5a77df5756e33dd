// Searches over one row of logits: the largest, the k largest in order, the smallest set of a given mass.
#pragma once

#include <cstdint>
#include <vector>

namespace appl {

struct Extremum {
  float value;  // minus infinity if there is none
  bool has_nan;
};
Extremum find_maximum(const float* logits, int count);

// The first id with that value.
int find_first(const float* logits, int count, float value);

int64_t count_above(const float* logits, int count, float value);

// sum(exp(logit - maximum)) over logits not below `floor`.
double sum_of_exponentials(const float* logits, int count, float maximum, float floor);

// A cut in the order (logit descending, id ascending): the token at the cut and all before it are kept.
struct Cut {
  float logit;
  int id;
  bool keeps(float other, int other_id) const { return other > logit || (other == logit && other_id <= id); }
};

struct Candidate {
  float logit;
  int id;
};
using Candidates = std::vector<Candidate>;

// Keeps exactly the first `k` tokens that `cut` keeps, or all if there are fewer.
Cut keep_first(const float* logits, int count, float maximum, Cut cut, int64_t k, Candidates& scratch);

// Keeps the shortest prefix of the tokens that `cut` keeps whose share of their mass reaches `p`.
Cut keep_mass(const float* logits, int count, float maximum, Cut cut, float p, Candidates& scratch);

// Collects the tokens that `cut` keeps, by id.
void gather(const float* logits, int count, Cut cut, Candidates& out);
void sort_in_order(Candidates& candidates);

}  // namespace appl
