// What most sources include, read once a level. Each source includes what it uses all the same: the emulated levels are built without this.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "simd.h"
