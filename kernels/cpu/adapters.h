// The changes of adapters to what a Linear, an embedding or experts give.
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
  std::vector<int32_t> places;  // of each row of the extent, where it is in `rows`; -1 without an adapter

  void set(const appl_step& step, int32_t extent);
  const AdapterRow* find(int row) const { return places.empty() || places[size_t(row)] < 0 ? nullptr : &rows[size_t(places[size_t(row)])]; }
};

// They throw Error if the operator cannot be run.
void check_adapter_linear(const appl_adapter_linear& op);
void check_adapter_embed(const appl_adapter_embed& op);
void check_adapter_experts(const appl_adapter_experts& op);

size_t adapter_linear_bytes(const appl_adapter_linear& op, int max_rows);

// A row's result depends on its own numbers alone: its sums have one order, however many rows there are. `scratch` has
// adapter_linear_bytes of the rows.
void run_adapter_linear(appl_pool& pool, const appl_adapter_linear& op, const AdapterRows& rows, float* scratch);

void run_adapter_embed(appl_pool& pool, const appl_adapter_embed& op, const AdapterRows& rows, const appl_step& step);

// One row of a place whose parts are `widths`, by the calling thread. low: its products with `down`, as many as all ranks.
struct AdapterPlace {
  const appl_adapter_map* map;
  const int32_t* widths;
  int num_parts, layout;
};
void adapter_shrink(const AdapterPlace& place, const float* x, int width, float* low);
void adapter_expand(const AdapterPlace& place, const float* low, float scale, float* out);

}  // namespace appl
