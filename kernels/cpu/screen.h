// Which outputs of a Linear may be among the largest of their row: a copy of its weight, three quarters of the bytes or less, says of each
// how large it is at most and at least. Only where that leaves a doubt is the weight itself read.
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <memory>
#include <vector>

#include "appliance_abi.h"
#include "linear.h"
#include "pool.h"
#include "prepared.h"
#include "weight.h"

struct appl_screen {
  std::unique_ptr<appl_weight> codes;  // int8, one scale a row; of an int8 weight int6. Its panels are in the pool's store
  std::vector<float> norms;            // [panel][kPanel]: of a row of the codes
  std::vector<float> lost;             // [panel][kPanel]: norm of what rounding took from the row; infinite where it cannot be told

  size_t bytes() const { return codes->bytes() + (norms.size() + lost.size()) * sizeof(float); }

  bool saves_half() const { return codes->layout == APPL_INT8; }
  // Where it does not, only so few rows gain: they are read at the pace of memory.
  int most_rows() const { return saves_half() ? INT_MAX : 4; }
};

namespace appl {

// Throws Error for a weight of less than 8 bits, and for int8 whose groups int6 has not: of a multiple of 16 columns that divides 256.
appl_screen* make_screen(appl_pool& pool, const appl_weight& weight);

// The form in which the copy wants its input.
PreparedShape screen_shape(const appl_screen& screen);

struct ScreenedCall {
  const appl_weight* weight;
  const appl_screen* screen;
  const appl_step& step;  // says of each row how many of its outputs are wanted, and which do not count
  appl_span x;            // what both inputs were prepared from
  Prepared input;         // in input_shape's form
  Prepared rounded;       // in screen_shape's form
  float* out;
  int out_stride;
  uint8_t* scratch;  // screen_scratch_bytes
};

size_t screen_scratch_bytes(const appl_weight& weight, const PreparedShape& input, int rows, int threads);

// out = x @ weight.T as run_linear has it in every panel with an output that may be one of the row's num_largest, or above one of
// them and past; the other outputs are less than those, also when both are divided by a number of 0.001 to 100, and near what they
// would be. Returns false where those were so many that nothing is gained; where they were most, all outputs were computed.
bool run_screened(appl_pool& pool, const ScreenedCall& call);

// Steps whose outputs are so alike that a screen gains nothing come in runs: after some in a row it pauses, longer each time.
class ScreenPauses {
 public:
  // Called once a step: true where this one does without.
  bool skip() { return left_ > 0 && left_-- > 0; }

  void ran(bool has_gained) {
    failures_ = has_gained ? 0 : std::min(failures_ + 1, kMostFailures);
    left_ = has_gained ? 0 : (1 << (failures_ - 1)) - 1;
  }

 private:
  static constexpr int kMostFailures = 7;  // in a row that count: 0, 1, 3, 7, 15, 31, and then always 63 steps of pause
  int failures_ = 0, left_ = 0;
};

}  // namespace appl
