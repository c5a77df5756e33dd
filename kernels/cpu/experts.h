// Mixture of experts: runs the chosen experts of each row, and sums their outputs.
#pragma once

#include <algorithm>

#include "adapters.h"
#include "appliance_abi.h"
#include "pool.h"
#include "prepared.h"

namespace appl {

constexpr int kMaxExperts = 1024;
constexpr int kLeastPairs = 256;  // the pairs of a row and an expert that are worked on at a time: decodes have about as many

// The width of one expert's output.
inline int output_width(const appl_experts& op) { return op.is_apart != 0 ? op.out.width / op.experts.width : op.out.width; }

void run_route(appl_pool& pool, const appl_route& op, int rows);

// The forms in which experts read their inputs, and the layout of scratch memory. At most max_pairs pairs of a row and a chosen expert are
// worked on at a time, at least as many as there are rows, which is the most that one expert can have.
struct ExpertsShape {
  PreparedShape gate{}, up{}, inner{};
  int max_rows = 0, max_pairs = 0, num_chosen = 0, num_experts = 0, num_threads = 0;
  int sums = 0;           // floats per pair for gate and up
  int outputs = 0;        // floats per pair for the output
  int thread_floats = 0;  // floats per thread for a row before it is prepared
  int low = 0;            // the highest rank of adapters; 0 without places for them
  bool has_gate = false;  // the gate has a separate weight

  size_t number_bytes() const { return size_t(num_experts + 1 + 2 * max_rows * num_chosen) * sizeof(int32_t); }
  size_t bytes() const;
};
ExpertsShape experts_shape(const appl_experts& op, bool quantize_activations, int max_rows, int num_threads, int max_rank = 0);

// Experts with consecutive numbers are computed together, in ascending order, and a row is summed in the same order: its result does not
// depend on the other rows. Throws Error for an expert number out of range.
void run_experts(appl_pool& pool, const appl_experts& op, const ExpertsShape& shape, int rows, uint8_t* scratch);
// The same, with the changes of the rows' adapters to each expert's gate, up and down before its activation and its factor.
void run_adapter_experts(appl_pool& pool, const appl_adapter_experts& op, const AdapterRows& adapted, const ExpertsShape& shape, int rows,
                         uint8_t* scratch);

// Sums outputs that lie apart, as run_experts sums its own.
void run_mix_experts(appl_pool& pool, const appl_mix_experts& op, int rows);

// Finds a place for each choice of each row, and counts the choices. Throws Error for an expert or a place out of range.
void run_place_experts(const appl_place_experts& op, int rows);

}  // namespace appl
