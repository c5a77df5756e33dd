// Asks for more threads than fit a small address space: prints what the pool says, and that one of two threads works afterwards.
#include <sys/resource.h>

#include <cstdio>

#include "pool.h"
#include "status.h"

int main() {
  const rlimit limit{size_t{256} << 20, size_t{256} << 20};
  if (setrlimit(RLIMIT_AS, &limit) != 0) return 2;
  try {
    appl_pool pool(1024);
  } catch (const appl::Error& error) {
    std::printf("%s\n", error.what());
  }
  appl_pool pool(2);
  int items[64] = {}, sum = 0;
  appl::parallel_for(pool, 64, 1 << 20, [&](int64_t begin, int64_t end) {
    for (; begin < end; ++begin) items[begin] = 1;
  });
  for (int item : items) sum += item;
  std::printf("%d items\n", sum);
}
