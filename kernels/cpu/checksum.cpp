// A checksum that detects damaged bytes, at the speed of memory.
#include <cstring>
#include <vector>

#include "weight.h"

namespace appl {
namespace {

constexpr uint64_t kPrime = 0x9e3779b97f4a7c15u;
constexpr size_t kPiece = size_t{1} << 20, kLanes = 8;

uint64_t mix(uint64_t state, uint64_t word) {
  state = (state ^ word) * kPrime;
  return state ^ state >> 29;
}

// Eight independent sums, so that multiplications need not wait for each other.
uint64_t sum_piece(const uint8_t* data, size_t bytes) {
  uint64_t lanes[kLanes] = {1, 2, 3, 4, 5, 6, 7, 8}, words[kLanes];
  size_t at = 0;
  for (; at + sizeof(words) <= bytes; at += sizeof(words)) {
    std::memcpy(words, data + at, sizeof(words));
    for (size_t lane = 0; lane < kLanes; ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  uint64_t result = bytes;
  for (uint64_t lane : lanes) result = mix(result, lane);
  for (; at < bytes; ++at) result = mix(result, data[at]);
  return result;
}

}  // namespace

uint64_t checksum(appl_pool* pool, const void* data, size_t bytes) {
  const uint8_t* from = static_cast<const uint8_t*>(data);
  std::vector<uint64_t> pieces((bytes + kPiece - 1) / kPiece);
  const auto sum_pieces = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const size_t at = size_t(i) * kPiece;
      pieces[size_t(i)] = sum_piece(from + at, bytes - at < kPiece ? bytes - at : kPiece);
    }
  };
  if (pool == nullptr) sum_pieces(0, int64_t(pieces.size()));
  else parallel_for(*pool, int64_t(pieces.size()), int64_t{kPiece}, sum_pieces, 1);
  uint64_t result = bytes;
  for (uint64_t piece : pieces) result = mix(result, piece);
  return result;
}

}  // namespace appl
