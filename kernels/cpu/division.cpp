#include "division.h"

#include <limits>

#include "caches.h"
#include "matrix.h"
#include "tall.h"

namespace appl {
namespace {

constexpr size_t kStreamBytes = 64 << 10;         // of an item, if panels are read once: at the end, the last thread runs alone this long
constexpr int kStreamRows = APPL_VNNI ? 60 : 10;  // up to so many rows stream int8 weights, which hardly need unpacking
constexpr int kPackedStreamRows = APPL_VNNI ? 144 : 2;  // up to so many rows stream other codes
constexpr int kSecondLevelRows = 16;                    // up to so many rows prefetch into the second level if the first is small

// The number of rows from which it pays to unpack codes and scales once; fewer rows stream the packed weights. Int8 with one scale per
// row hardly needs unpacking.
int min_tall_rows(const appl_weight& weight) {
  const bool is_unpacked = weight.layout == APPL_INT8 && weight.num_groups == 1;
  if (APPL_VNNI && is_unpacked) return std::numeric_limits<int>::max();
  return (is_unpacked ? kStreamRows : kPackedStreamRows) + 1;
}

// The rows that share a block of input in the second level. Each chunk of panels reads the input of all columns. f32 input would not fit
// there, but narrow vectors compute too slowly for that to matter.
int block_rows(const PreparedShape& input) {
  if (input.group_size != 0 || kWidth < 16) return kBlockRows;
  constexpr size_t kInputBytes = 512 << 10;
  constexpr int kLeastRows = 96;  // for fewer, weights would be read too often
  return std::clamp(int(kInputBytes / (size_t(input.num_blocks()) * kRowBytes)), kLeastRows, kBlockRows);
}

// For one row that streams: panels of planes whose addresses differ by whole pages evict each other from the first level (AVX2: 1.2
// to 1.3 times as long; tiles of int4 and int8 read fewer lines at a time and are not affected).
bool panels_collide(const appl_weight& weight) {
  constexpr size_t kPage = 4096;
  return kStreamVectors > 0 && (weight.layout == APPL_INT5 || weight.layout == APPL_INT6) && weight.panel_bytes % kPage == 0;
}

// Whether a tile that alone reads its weights, as integer codes, takes one panel at a time, in the order of addresses, which memory serves
// faster. With few sums, products wait for one another, unless unpacking adds enough instructions and the core has enough of them in
// flight. Zen 4 (recognized by its small first level) has not: it takes one panel only if there is no room for more. With many rows, each
// vector of weights would serve too few products; but with sub-groups, sums leave room for only one or two panels anyway.
bool reads_in_order(const appl_weight& weight, bool quantizes, int rows) {
  if (weight.layout == APPL_BF16) return APPL_BF16_DOT && rows > 2;
  if (!APPL_VNNI || !quantizes) return false;
  const bool has_one_scale = weight.num_groups == 1;
  if (weight.layout == APPL_INT8) return has_one_scale ? rows > 2 && rows <= 8 : rows <= 4;
  if (has_small_first_level()) return weight.sub_group_size != 0 && integer_tile_panels(rows, true) == 1;
  return weight.sub_group_size != 0 || (!has_one_scale && rows == 1 && !is_intel());
}

// Measured: on Intel's processors all streaming rows gain; with a small first level (Zen 4) only few rows gain.
Asked level_of(int rows, bool streams) {
  if (is_intel()) return streams ? Asked::kBoth : Asked::kFirst;
  return rows <= kSecondLevelRows && has_small_first_level() ? Asked::kSecond : Asked::kFirst;
}

}  // namespace

bool may_be_tall(const appl_weight& weight, const PreparedShape& input) {
  return kHasTallTiles && input.group_size != 0 && !has_matrix_form(weight, true) &&
         appl::is_tall(weight.layout, input.group_size, weight.num_groups == 1) && min_tall_rows(weight) != std::numeric_limits<int>::max();
}

int gated_panels(const PreparedShape& next) { return std::max(kGatedPanels, next.group_size / kPanel); }

Division::Division(const LinearCall& call, int threads)
    : rows_(call.direct != nullptr ? 1 : call.input.rows),
      panels_(call.gated_sums != nullptr ? call.weight->num_panels / 2 : call.weight->num_panels) {
  divide_rows(*call.weight, call.input.shape);
  order_reads(*call.weight, call.input.shape.group_size != 0);
  divide_panels(call, threads);
}

// Tiles of nearly equal height, and blocks of nearly as many tiles each.
void Division::divide_rows(const appl_weight& weight, const PreparedShape& input) {
  const bool quantizes = input.group_size != 0, may_be_tall = appl::may_be_tall(weight, input);
  is_matrix_ = has_matrix_form(weight, quantizes);
  is_tall_ = may_be_tall && rows_ >= min_tall_rows(weight);
  const int stream_rows = may_be_tall ? min_tall_rows(weight) - 1 : kStreamRows;
  max_stream_tiles_ = quantizes && kHasTallTiles ? divided(stream_rows, kMaxTileRows) : 2;
  const int most_rows = is_matrix_ ? kMaxMatrixRows : is_tall_ ? tall_rows(weight.layout) : kMaxTileRows;
  const int block_tiles = std::max(1, block_rows(input) / most_rows);
  num_tiles_ = divided(rows_, most_rows);
  tiles_per_block_ = divided(num_tiles_, divided(num_tiles_, block_tiles));
  num_row_blocks_ = divided(num_tiles_, tiles_per_block_);
}

void Division::order_reads(const appl_weight& weight, bool quantizes) {
  const int rows = rows_per_tile();
  is_in_order_ = num_tiles_ == 1 && !is_matrix_ && reads_in_order(weight, quantizes, rows);
  level_ = level_of(rows_, streams());
  panels_per_tile_ = is_matrix_ ? matrix_panels(rows) : tile_panels(rows);
  if (quantizes && !is_matrix_) panels_per_tile_ = std::min(panels_per_tile_, integer_tile_panels(rows, weight.sub_group_size != 0));
  if (is_in_order_ || (rows <= 2 && panels_collide(weight))) panels_per_tile_ = 1;
  if (is_tall_) panels_per_tile_ = std::max(panels_per_tile_, kTallPanels);  // items have whole blocks
}

// Chunks of whole tiles, small enough that every thread has some.
void Division::divide_panels(const LinearCall& call, int threads) {
  const int least_items = streams() ? 4 : 2;  // per thread
  const int64_t wanted = panels_wanted(call), fair = panels_ / (least_items * threads);
  const int64_t chunk = call.next != nullptr ? wanted : std::max<int64_t>(1, std::min(wanted, fair));
  panels_per_chunk_ = int((chunk + panels_per_tile_ - 1) / panels_per_tile_ * panels_per_tile_);
  num_chunks_ = divided(panels_, panels_per_chunk_);
}

int64_t Division::panels_wanted(const LinearCall& call) const {
  if (call.next != nullptr) return gated_panels(call.next->shape);
  if (call.gated_sums != nullptr) return kGatedPanels;
  return streams() ? int64_t(kStreamBytes / call.weight->panel_bytes) : 4;
}

}  // namespace appl
