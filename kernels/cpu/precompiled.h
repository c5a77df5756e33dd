// The headers that most sources include, read once per level. Each source also includes what it uses: emulated levels do not use this.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "simd.h"
