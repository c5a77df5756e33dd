// Packed weights of four to six bits as the bytes that int8 products take.
#pragma once

#include "weight.h"

namespace appl {

// Columns [first, first + columns) of a panel of int4, int5 or int6 in int8's form, without headers: [columns / 4][16][4]
// unsigned bytes, q + zero_point of the weight. Both are multiples of the group size; `columns` may end with the panel.
void unpack_columns(const appl_weight& weight, const uint8_t* panel, int first, int columns, uint8_t* to);

// The same of one group's data, `columns` of it.
void unpack_group(appl_layout layout, const uint8_t* data, int columns, uint8_t* to);

}  // namespace appl
