// Linears on the processor's matrix unit (AMX): up to 32 rows of the input at a time, against panels as they are packed.
#pragma once

#include "tile.h"
#include "weight.h"

namespace appl {

constexpr bool kHasMatrixUnit = APPL_AMX;
constexpr int kMaxMatrixRows = 32;

// True where the unit multiplies this weight. It then does so for any number of rows, one too, so that a row gets the same
// result in every batch: the unit rounds its sums in another order than vectors do.
bool has_matrix_form(const appl_weight& weight, bool quantizes_activations);

// The panels that a call takes at a time: with the rows, as many as there are registers for sums.
constexpr int matrix_panels(int rows) { return rows > 16 ? 2 : 4; }

// What a tile of `rows` by `panels` (1, 2 or 4, at most matrix_panels) computes.
void run_matrix(appl_layout layout, int rows, int panels, const TileArgs& t);

// The registers' content may be lost from here on: a thread that keeps none is cheaper to switch.
void release_matrix_unit();

// Asks the operating system for the registers, once a process. False where it gives none.
bool may_use_matrix_unit();

// For measuring: products of one kind on four registers of sums, `repeats` times. Returns the operations done.
double multiply_bf16_in_matrix_unit(int repeats);
double multiply_bytes_in_matrix_unit(int repeats);

}  // namespace appl
