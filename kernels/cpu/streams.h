// Several residual streams; see appliance.program.streams.
#pragma once

#include "appliance_abi.h"
#include "pool.h"

namespace appl {

void run_mix_streams(appl_pool& pool, const appl_streams& op, int rows);
void run_correct_streams(appl_pool& pool, const appl_streams& op, int rows);
void run_match_magnitude(appl_pool& pool, const appl_magnitude& op, int rows);

}  // namespace appl
