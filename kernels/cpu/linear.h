// out = x @ weight.T, blocked for the caches and divided among the threads.
#pragma once

#include <vector>

#include "appliance_abi.h"
#include "pool.h"
#include "prepared.h"
#include "tile.h"
#include "weight.h"

namespace appl {

// The form in which a Linear over `weight` reads its input.
PreparedShape input_shape(const appl_weight& weight, bool quantize_activations);

struct LinearCall {
  const appl_weight* weight;
  Prepared input;       // rows, in input_shape's form
  const float* direct;  // one row of f32 that needs no preparation; null otherwise
  float* out;           // rows of `out_stride` floats, weight->rows of them written
  int out_stride;
  const float* bias;  // or null
  int32_t activation;
  bool accumulate;  // out += activation(x @ weight.T + bias)

  // If set, out = activation(x @ gate.T) * (x @ up.T), half as wide, with the weight's upper and lower half; there is no bias then.
  // Each thread keeps sums in its own kGatedSumFloats. With `next`, the results go there instead, as the input of another Linear.
  float* gated_sums = nullptr;
  const Prepared* next = nullptr;
};

constexpr int kMinNormedRows = 2;  // a single row may be read in place
constexpr int kMinGatedRows = 25;  // the output of fewer rows stays in the caches until it is read
constexpr int kBlockRows = 504;    // the most rows that share a block of input
constexpr int kGatedPanels = 4;    // panels of each half whose sums stay in the second-level cache
constexpr size_t kGatedSumFloats = size_t{kBlockRows} * 2 * kGatedPanels * kPanel;

// Whether the halves can be computed together.
bool has_halves(const appl_weight& weight);

// The number of rows of `input` from which it pays to write the results as `next`; INT_MAX if they cannot be.
int min_rows_for_next(const appl_weight& weight, const PreparedShape& input, const PreparedShape& next, int threads);

// Whether a single row can be read in place.
bool reads_in_place(const appl_weight& weight, const PreparedShape& shape, int rows);

void run_linear(appl_pool& pool, const LinearCall& call);

// Computes several Linears, each of at least one row that is not `direct`, in one run of the threads, which share all of them.
void run_linears(appl_pool& pool, const std::vector<LinearCall>& calls);

// Computes few rows, at most kMaxPanelRows, and one panel on the calling thread: sums [rows][kPanel]. `next`: the panel that is read
// after it.
constexpr int kMaxPanelRows = kMaxTileRows;
void run_panel(const appl_weight& weight, const Prepared& input, int panel, int next, float* sums);

}  // namespace appl
