#include "nodes.h"

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "status.h"

namespace appl {

void prefer_nodes(const int32_t* nodes, int count) {
  constexpr int kBits = int(8 * sizeof(unsigned long)), kMostNodes = 1024;  // what the system takes
  std::vector<unsigned long> mask(kMostNodes / kBits);
  for (int i = 0; i < count; ++i) {
    require(nodes[i] >= 0 && nodes[i] < kMostNodes, "a node is out of range");
    mask[size_t(nodes[i] / kBits)] |= 1ul << (nodes[i] % kBits);
  }
  const int mode = count == 0 ? MPOL_DEFAULT : count == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  if (syscall(SYS_set_mempolicy, mode, mask.data(), kMostNodes) == 0) return;
  throw Error(APPL_UNSUPPORTED, std::string("memory cannot be taken of these nodes: ") + std::strerror(errno));
}

}  // namespace appl
