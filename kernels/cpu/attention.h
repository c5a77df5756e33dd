// Flash-style attention over the paged cache, for prefill, chunks and decode in one batch.
#pragma once

#include "appliance_abi.h"
#include "attention_scratch.h"
#include "cascade.h"
#include "kv_cache.h"
#include "pool.h"

namespace appl {

// The workspace of run_attention: scratch for each thread, partial results if several threads share a sequence, and the state that rows
// carry from one level of a cascade to the next, for each sequence and head.
size_t attention_workspace_bytes(int num_threads, const ScratchShape& largest, int max_rows);

void run_attention(appl_pool& pool, const appl_attention& op, const KvLayer& layer, const appl_step& step, const Cascade& cascade,
                   uint8_t* workspace);

}  // namespace appl
