// Low-rank maps of adapters, added to what a Linear gives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "appliance_abi.h"
#include "pool.h"

namespace appl {

constexpr int kAdapterRows = 4;  // rows of one adapter that are computed together

// A row of activations whose sequence has an adapter.
struct AdapterRow {
  int32_t row;
  int32_t slot;
  float scale;
};

// The rows of one extent that have adapters, those of a slot together and in order; and pieces of them of up to kAdapterRows rows.
struct AdapterRows {
  struct Piece {
    int32_t first, count;
  };
  std::vector<AdapterRow> rows;
  std::vector<Piece> pieces;

  void set(const appl_step& step, int32_t extent);
};

// Throws Error if the operator cannot be run.
void check_adapter_linear(const appl_adapter_linear& op);

size_t adapter_linear_bytes(const appl_adapter_linear& op, int max_rows);

// A row's result depends on its own numbers alone: its sums have one order, however many rows there are. `scratch` has
// adapter_linear_bytes of the rows.
void run_adapter_linear(appl_pool& pool, const appl_adapter_linear& op, const AdapterRows& rows, float* scratch);

}  // namespace appl
