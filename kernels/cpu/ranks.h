// How the ranks of one machine wait for one another, in a page that they share.
#pragma once

#include "appliance_abi.h"

namespace appl {

// Throws Error if the operator cannot be run.
void check_meeting(const appl_meeting& op);

// Waits until every rank is here as often as this one; what each wrote before is then seen by all. Throws Error with APPL_RANK_FAILED if
// a rank says that it failed, or one does not come within the deadline: then every rank's wait ends.
void run_meeting(const appl_meeting& op);

}  // namespace appl
