// Linears on the processor's matrix unit (AMX): up to 32 rows of the input at a time, multiplied with the packed panels.
#pragma once

#include "tile.h"
#include "weight.h"

namespace appl {

constexpr bool kHasMatrixUnit = APPL_AMX;
constexpr int kMaxMatrixRows = 32;

// Whether the unit multiplies this weight. It then does so for any number of rows, even one, so that a row gets the same result in every
// batch: the unit rounds its sums in another order than vectors do.
bool has_matrix_form(const appl_weight& weight, bool quantizes_activations);

// The panels that a call takes at a time: as many as there are registers for the sums of these rows.
constexpr int matrix_panels(int rows) { return rows > 16 ? 2 : 4; }

// Computes a tile of `rows` by `panels` (1, 2 or 4, at most matrix_panels).
void run_matrix(appl_layout layout, int rows, int panels, const TileArgs& t);

// Releases the registers, whose content is lost: a thread without them is cheaper to switch.
void release_matrix_unit();

// Requests the registers from the operating system, once per process. False if it refuses.
bool may_use_matrix_unit();

// For measurements: does products of one kind on four registers of sums, `repeats` times. Returns the number of operations.
double multiply_bf16_in_matrix_unit(int repeats);
double multiply_bytes_in_matrix_unit(int repeats);

}  // namespace appl
