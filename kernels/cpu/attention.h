// Flash-style attention over the paged cache, for prefill, chunks and decode in one batch.
#pragma once

#include "appliance_abi.h"
#include "cascade.h"
#include "kv_cache.h"
#include "pool.h"

namespace appl {

// Workspace that run_attention needs: scratch for each thread, partial results where one sequence is shared out, and what rows hand on
// from one level of a cascade to the next: sequences times heads of these.
size_t attention_workspace_bytes(int num_threads, int max_width, int max_rows);

void run_attention(appl_pool& pool, const appl_attention& op, const KvLayer& layer, const appl_step& step, const Cascade& cascade,
                   uint8_t* workspace);

}  // namespace appl
