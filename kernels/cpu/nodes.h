// NUMA nodes: where the memory of a thread's new pages is taken.
#pragma once

#include <cstdint>

namespace appl {

// Has the calling thread, and those that it starts from then on, take memory of these nodes: of the one as long as it has any, or of several
// in turn; without any, of the node on which they run. Throws Error if the system refuses it.
void prefer_nodes(const int32_t* nodes, int count);

}  // namespace appl
