// What tiles read of a chunk of keys.
#pragma once

#include "attention_scratch.h"

namespace appl {

// The panels of a KV head's keys, wherever their blocks are, and as many panels to prefetch meanwhile.
struct Panels {
  int count = 0;
  const uint8_t *keys[kChunk / kPanel], *asked[kChunk / kPanel];

  void add(const uint8_t* key, const uint8_t* ask, int panels, size_t panel_bytes) {
    for (int i = 0; i < panels; ++i, ++count, key += panel_bytes, ask += panel_bytes) {
      keys[count] = key;
      asked[count] = ask;
    }
  }
  void move(size_t bytes) {
    for (int i = 0; i < count; ++i) {
      keys[i] += bytes;
      asked[i] += bytes;
    }
  }
};

}  // namespace appl
