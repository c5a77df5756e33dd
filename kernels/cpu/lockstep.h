// Replicas that run their steps together, because each has some of the experts of all.
#pragma once

#include "appliance_abi.h"
#include "experts.h"
#include "pool.h"

namespace appl {

// The rows of a round, by extent: where a replica's own begin among those of all, and how many these are.
struct RoundRows {
  int first[2], total[2];
};

// The operator over the rows of all, whose outputs lie apart in the memory that replicas share.
appl_experts over_all(const appl_spread_experts& op);

// Throws Error if the operator cannot be run; over_all is checked for itself.
void check_spread_experts(const appl_spread_experts& op);

// Begins a round: says how many rows this replica has, and waits until all have said it. Throws Error like run_meeting.
RoundRows begin_round(const appl_spread_experts& op, int num_tokens, int num_sampled);

// Has the others' waits end with an error: this replica has not run the round to its end.
void leave_group(const appl_spread_experts& op);

// Brings the rows together, gives all what the experts here make of them, and sums what all experts made of the replica's own rows.
// shape: of over_all.
void run_spread_experts(appl_pool& pool, const appl_spread_experts& op, const ExpertsShape& shape, const RoundRows& round, int rows,
                        uint8_t* scratch);

}  // namespace appl
