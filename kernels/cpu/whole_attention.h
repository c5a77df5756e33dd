// Attention among the tokens of a step that holds each sequence whole: encoders, which keep no cache.
#pragma once

#include <cstddef>

#include "appliance_abi.h"
#include "pool.h"

namespace appl {

// The scratch of one thread for sequences of up to `longest` tokens.
size_t whole_attention_bytes(const appl_whole_attention& op, int longest);

// scratch: whole_attention_bytes for each thread of the pool, aligned to 64.
void run_whole_attention(appl_pool& pool, const appl_whole_attention& op, const appl_step& step, float* scratch);

}  // namespace appl
