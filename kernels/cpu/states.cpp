#include "states.h"

#include "activation.h"
#include "memory.h"
#include "status.h"

namespace appl {
namespace {

constexpr int kConvColumns = 512;  // of an item: few rows are in one page

// The columns [first, first + width) of one sequence's piece.
struct ConvPiece {
  const appl_short_conv& op;
  const float* taps;  // [K][C]
  int first, width;
  float* kept;  // [K - 1][kConvColumns]: the state at the piece's end

  int num_kept() const { return op.kernel_size - 1; }

  // The input at a token before or in the piece, whose first token is 0.
  const float* input(const float* x, const float* state, int token) const {
    return token < 0 ? state + ptrdiff_t(num_kept() + token) * op.x.width : x + ptrdiff_t(token) * op.x.stride;
  }

  template <class F>
  void token(F&& f, const float* const* inputs, float* out) const {
    for (int i = 0; i < width; i += kWidth) {
      const int count = width - i;
      Floats y = op.bias == nullptr ? Floats{} : load_first(op.bias + first + i, count);
      for (int tap = 0; tap < op.kernel_size; ++tap) {
        const float* const weights = taps + size_t(tap) * size_t(op.x.width) + first + i;
        y = multiply_add(y, load_first(weights, count), load_first(inputs[tap] + i, count));
      }
      store_first(out + i, f(y), count);
    }
  }

  // The last tokens come first, so that the output may replace the input.
  template <class F>
  void run(F&& f, int begin, int end, float* state) const {
    const int count = end - begin, taps_before = num_kept();
    const size_t bytes = size_t(width) * sizeof(float);
    const float* const x = op.x.data + size_t(begin) * size_t(op.x.stride) + first;
    float* const out = op.out.data + size_t(begin) * size_t(op.out.stride) + first;
    for (int i = 0; i < taps_before; ++i) std::memcpy(kept + i * kConvColumns, input(x, state, count - taps_before + i), bytes);
    for (int t = count - 1; t >= 0; --t) {
      const float* inputs[kMaxTaps];
      for (int tap = 0; tap <= taps_before; ++tap) inputs[tap] = input(x, state, t - taps_before + tap);
      token(f, inputs, out + size_t(t) * size_t(op.out.stride));
    }
    for (int i = 0; i < taps_before; ++i) std::memcpy(state + size_t(i) * size_t(op.x.width), kept + i * kConvColumns, bytes);
  }
};

}  // namespace

void check_pieces(const appl_step& step, int num_slots) {
  require(step.piece_first != nullptr, "step: the program has states, and the step has no pieces");
  require(step.piece_first[0] == 0 && step.piece_first[step.num_seqs] == step.num_pieces, "step: the sequences do not have all pieces");
  for (int s = 0; s < step.num_seqs; ++s) {
    const int first = step.piece_first[s], end = step.piece_first[s + 1];
    require(first >= 0 && first <= end && end <= step.num_pieces, "step: a sequence has bad pieces");
    require(step.piece_start[first] == step.query_start[s] && step.piece_start[end] == step.query_start[s + 1],
            "step: the pieces of a sequence are not its tokens");
    for (int p = first; p < end; ++p) {
      require(step.piece_start[p] <= step.piece_start[p + 1], "step: a piece ends before it begins");
      require(step.piece_source[p] < num_slots && step.piece_target[p] >= 0 && step.piece_target[p] < num_slots,
              "step: a piece names a state that is not there");
    }
  }
  constexpr int kNobody = -1;
  std::vector<int> writers(size_t(num_slots), kNobody);
  for (int s = 0; s < step.num_seqs; ++s) {
    for (int p = step.piece_first[s]; p < step.piece_first[s + 1]; ++p) {
      int& writer = writers[size_t(step.piece_target[p])];
      require(writer == kNobody || writer == s, "step: two sequences write one state");
      writer = s;
    }
  }
  for (int s = 0; s < step.num_seqs; ++s) {
    for (int p = step.piece_first[s]; p < step.piece_first[s + 1]; ++p) {
      if (step.piece_source[p] < 0) continue;
      const int writer = writers[size_t(step.piece_source[p])];
      require(writer == kNobody || writer == s, "step: a sequence reads a state that another writes");
    }
  }
}

std::vector<float> taps_of(const appl_short_conv& op) {
  const size_t columns = size_t(op.x.width), taps = size_t(op.kernel_size);
  std::vector<float> result(columns * taps);
  for (size_t c = 0; c < columns; ++c) {
    for (size_t tap = 0; tap < taps; ++tap) result[tap * columns + c] = op.weight[c * taps + tap];
  }
  return result;
}

size_t scratch_bytes(const appl_short_conv& op) { return size_t(op.kernel_size - 1) * kConvColumns * sizeof(float); }

void run_short_conv(appl_pool& pool, const appl_short_conv& op, const appl_state& state, const float* taps, const appl_step& step,
                    float* scratch) {
  const int chunks = divided(op.x.width, kConvColumns);
  const int64_t work = tokens_per_sequence(step) * kConvColumns * op.kernel_size;
  with_activation(op.activation, [&](auto f) {
    parallel_for(pool, int64_t(step.num_seqs) * chunks, work, [&](int64_t begin, int64_t end, int thread) {
      float* const kept = scratch + size_t(thread) * scratch_bytes(op) / sizeof(float);
      for (int64_t item = begin; item < end; ++item) {
        const int first = int(item % chunks) * kConvColumns, width = std::min(kConvColumns, op.x.width - first);
        const ConvPiece piece{op, taps, first, width, kept};
        const StatePart part{size_t(first), op.kernel_size - 1, size_t(width), size_t(op.x.width)};
        carry(step, state, int(item / chunks), part, [&](int from, int to, float* at) { piece.run(f, from, to, at); });
      }
    });
  });
}

}  // namespace appl
