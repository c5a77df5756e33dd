// The operators that read each activation once or twice.
#pragma once

#include "appliance_abi.h"
#include "pool.h"

namespace appl {

inline float* row_of(const appl_span& span, int64_t row) { return span.data + size_t(row) * size_t(span.stride); }
float mean_of_squares(const float* x, int count);

int num_tokens(const appl_embed& op);                                // of the tables of all ranks
const float* given_embedding(const appl_step& step, int64_t token);  // in place of a row of the table; NULL: there is none
void run_embed(appl_pool& pool, const appl_embed& op, const appl_step& step);
void run_norm(appl_pool& pool, int32_t kind, const appl_norm& op, int rows);
void norm_row(int32_t kind, const appl_norm& op, int64_t row, float* out);
void run_head_norm(appl_pool& pool, const appl_head_norm& op, int rows);
void run_activation(appl_pool& pool, const appl_pointwise& op, int rows);
void run_gated_activation(appl_pool& pool, const appl_gated& op, int rows);
void run_rope(appl_pool& pool, const appl_rope& op, const appl_step& step);
void run_gated_add(appl_pool& pool, const appl_gated_add& op, int rows);
void run_copy(appl_pool& pool, const appl_move& op, int rows);
void run_add(appl_pool& pool, const appl_move& op, int rows);
void run_scale_by_position(appl_pool& pool, const appl_position_scale& op, const appl_step& step);
void run_gather_rows(appl_pool& pool, const appl_move& op, const appl_step& step);
void run_scale(appl_pool& pool, const appl_factor& op, int rows);
void run_mean_rows(appl_pool& pool, const appl_move& op, const appl_step& step);
void run_soft_cap(appl_pool& pool, const appl_soft_cap& op, int rows);
void run_scale_by_weight(appl_pool& pool, const appl_weight_scale& op, int rows);
void run_gaussian_top_k(appl_pool& pool, const appl_top_k& op, int rows);

}  // namespace appl
