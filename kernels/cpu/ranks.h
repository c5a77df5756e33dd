// How the ranks of one machine wait for one another, in a page that they share.
#pragma once

#include "appliance_abi.h"

namespace appl {

// Throws Error if the operator cannot be run.
void check_meeting(const appl_meeting& op);

// Waits until every rank is here as often as this one; what each wrote before is then seen by all. Throws Error with APPL_RANK_FAILED if
// a rank says that it failed, or one does not come within the deadline: then every rank's wait ends.
void run_meeting(const appl_meeting& op);

// The page of a group: a line that says whether one of them has failed, and a line for each rank.
constexpr size_t kLineBytes = 64;

// Those that meet. Of replicas with several ranks each, an error names the replica.
struct Group {
  void* page;
  int32_t rank, num_ranks, ranks_each, timeout_ms;
  bool are_replicas;

  uint8_t* line(int number) const { return static_cast<uint8_t*>(page) + kLineBytes * size_t(number + 1); }
};
void check_group(const Group& group);
void meet(const Group& group);
void fail(const Group& group);  // names this one to the others, whose waits end

}  // namespace appl
