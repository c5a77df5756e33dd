// Flash-style attention over the paged cache, for prefill, chunks and decode in one batch.
#pragma once

#include "appliance_abi.h"
#include "kv_cache.h"
#include "pool.h"

namespace appl {

// Workspace that run_attention needs: scratch for each thread, and partial results where one sequence is shared out.
size_t attention_workspace_bytes(int num_threads, int max_width);

void run_attention(appl_pool& pool, const appl_attention& op, const KvLayer& layer, const appl_step& step,
                   uint8_t* workspace);

}  // namespace appl
