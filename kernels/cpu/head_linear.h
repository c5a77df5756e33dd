// A separate matrix for each head: out = concat(weight_h @ x_h, tail_h) for every head h.
#pragma once

#include "appliance_abi.h"
#include "pool.h"
#include "prepared.h"

namespace appl {

constexpr int kLeastHeadRows = 256;  // pairs of a row and a head that are worked on at a time: decodes have about as many

// The form in which the heads' matrices read their input, and how many pairs of a row and a head are worked on at a time.
struct HeadLinearShape {
  PreparedShape input{};
  int max_pairs = 0;
  size_t bytes() const { return max_pairs == 0 ? 0 : input.bytes(max_pairs); }
};
HeadLinearShape head_linear_shape(const appl_head_linear& op, bool quantize_activations, int max_rows);

void run_head_linear(appl_pool& pool, const appl_head_linear& op, const HeadLinearShape& shape, int rows, uint8_t* scratch);

}  // namespace appl
