// out = x @ weight.T, blocked for the caches and shared among the threads.
#pragma once

#include <vector>

#include "appliance_abi.h"
#include "pool.h"
#include "prepared.h"
#include "tile.h"
#include "weight.h"

namespace appl {

// The form in which a Linear over `weight` wants its input.
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

  // Or out = activation(x @ gate.T) * (x @ up.T), of the weight's upper and lower half, half as wide; there is no bias then.
  // Each thread keeps sums in kGatedSumFloats of its own. With `next`, the results go there instead, as the input of another Linear.
  float* gated_sums = nullptr;
  const Prepared* next = nullptr;
};

constexpr int kMinNormedRows = 2;  // one may be read in place
constexpr int kMinGatedRows = 25;  // fewer lie in the caches until somebody reads them
constexpr int kBlockRows = 504;    // at most, that share a block of input
constexpr int kGatedPanels = 4;    // of each half, whose sums stay in the second-level cache
constexpr size_t kGatedSumFloats = size_t{kBlockRows} * 2 * kGatedPanels * kPanel;

// True where the halves can be computed side by side.
bool has_halves(const appl_weight& weight);

// From how many rows on these, of an `input`, pay to be written as `next`; INT_MAX where they cannot be.
int min_rows_for_next(const appl_weight& weight, const PreparedShape& input, const PreparedShape& next, int threads);

// True where a single row can be read in place.
bool reads_in_place(const appl_weight& weight, const PreparedShape& shape, int rows);

void run_linear(appl_pool& pool, const LinearCall& call);

// Several, each of at least a row that is not `direct`, in one run of the threads, which share all of them out.
void run_linears(appl_pool& pool, const std::vector<LinearCall>& calls);

// The same of few rows, kMaxPanelRows at most, and one panel, on the calling thread: sums [rows][kPanel]. `next`: the panel that
// is read behind it.
constexpr int kMaxPanelRows = kMaxTileRows;
void run_panel(const appl_weight& weight, const Prepared& input, int panel, int next, float* sums);

}  // namespace appl
