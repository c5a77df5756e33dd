// The screen: finds which outputs of a Linear may be among the largest of their row. A copy of its weight, with three quarters of the bytes
// or less, gives an upper and a lower bound of each output. Only where the bounds do not decide, the weight itself is read.
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
  std::unique_ptr<appl_weight> codes;  // int8 with one scale per row; for an int8 weight int6. Its panels are in the pool's store
  std::vector<float> norms;            // [panel][kPanel]: of a row of the codes
  std::vector<float> lost;             // [panel][kPanel]: norm of the row's rounding error; infinite if it is not known

  size_t bytes() const { return codes->bytes() + (norms.size() + lost.size()) * sizeof(float); }

  bool saves_half() const { return codes->layout == APPL_INT8; }
  // If it does not save half, only so few rows gain, as they are memory-bound.
  int most_rows() const { return saves_half() ? INT_MAX : 4; }
};

namespace appl {

// Throws Error for a weight of less than 8 bits, and for int8 with groups that int6 does not support (a multiple of 16 that divides 256).
appl_screen* make_screen(appl_pool& pool, const appl_weight& weight);

// The form in which the copy reads its input.
PreparedShape screen_shape(const appl_screen& screen);

struct ScreenedCall {
  const appl_weight* weight;
  const appl_screen* screen;
  const appl_step& step;  // has the number of wanted outputs of each row, and the tokens that do not count
  appl_span x;            // the input from which both forms were prepared
  Prepared input;         // in input_shape's form
  Prepared rounded;       // in screen_shape's form
  float* out;
  int out_stride;
  int first_token;   // of the weight's first row: one of several ranks has some rows only
  uint8_t* scratch;  // screen_scratch_bytes
};

size_t screen_scratch_bytes(const appl_weight& weight, const PreparedShape& input, int rows, int threads);

// Computes out = x @ weight.T exactly like run_linear in every panel with an output that may be one of the row's num_largest, or a past
// token's above one of them. The other outputs are approximations that are smaller than those, also when both are divided by a number from
// 0.001 to 100. Returns false if there were too many exact panels for a gain; if they were most, all outputs were computed.
bool run_screened(appl_pool& pool, const ScreenedCall& call);

// Steps with outputs so similar that a screen gains nothing come in runs: after each failure in a row, the screen pauses longer.
class ScreenPauses {
 public:
  // Called once per step: true if this step does not use the screen.
  bool skip() { return left_ > 0 && left_-- > 0; }

  void ran(bool has_gained) {
    failures_ = has_gained ? 0 : std::min(failures_ + 1, kMostFailures);
    left_ = has_gained ? 0 : (1 << (failures_ - 1)) - 1;
  }

 private:
  static constexpr int kMostFailures = 7;  // failures in a row that count: the pauses are 0, 1, 3, 7, 15, 31, and then always 63 steps
  int failures_ = 0, left_ = 0;
};

}  // namespace appl
