// Mixture of experts: which experts compute a row, and what they make of it.
#pragma once

#include <algorithm>

#include "appliance_abi.h"
#include "pool.h"
#include "prepared.h"

namespace appl {

constexpr int kMaxExperts = 1024;
constexpr int kLeastPairs = 256;  // of a row and an expert, that work is done on at a time: as many as decodes have

void run_route(appl_pool& pool, const appl_route& op, int rows);

// The forms in which experts read their inputs, and how they lie in scratch memory. So many pairs of a row and an expert that it chose
// are worked on at a time, at least as many as there are rows: an expert has no more.
struct ExpertsShape {
  PreparedShape gate{}, up{}, inner{};
  int max_rows = 0, max_pairs = 0, num_chosen = 0, num_experts = 0, num_threads = 0;
  int sums = 0;           // floats of a pair: gate and up
  int outputs = 0;        // the same of what it makes
  int thread_floats = 0;  // of each thread: a row before it is prepared
  bool has_gate = false;  // of a weight of its own

  size_t number_bytes() const { return size_t(num_experts + 1 + 2 * max_rows * num_chosen) * sizeof(int32_t); }
  size_t bytes() const;
};
ExpertsShape experts_shape(const appl_experts& op, bool quantize_activations, int max_rows, int num_threads);

// The experts of neighbouring numbers are computed together, in ascending order, and so are a row's sums: its result does not depend on
// the other rows. Throws Error where an expert is none of them.
void run_experts(appl_pool& pool, const appl_experts& op, const ExpertsShape& shape, int rows, uint8_t* scratch);

}  // namespace appl
