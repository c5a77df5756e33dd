// Unpacks weights of four to six bits to the bytes that int8 products take.
#pragma once

#include "weight.h"

namespace appl {

// Unpacks columns [first, first + columns) of a panel of int4, int5 or int6 to int8's form, without headers: [columns / 4][16][4]
// unsigned bytes, q + zero_point of the weight. Both are multiples of the group size, except at the end of the panel.
void unpack_columns(const appl_weight& weight, const uint8_t* panel, int first, int columns, uint8_t* to);

// Unpacks `columns` of one group's data; of a book's codes, it looks up the integers, plus the book's zero point.
void unpack_group(appl_layout layout, const uint8_t* data, int columns, uint8_t* to);

}  // namespace appl
