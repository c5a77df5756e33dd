#include "lockstep.h"

#include <atomic>
#include <cstring>
#include <string>

#include "ranks.h"
#include "status.h"

namespace appl {
namespace {

// A rank's line of the page; appliance/kernels/lockstep.py has the same. What a round says lies in the place of its parity: a replica that
// is a round ahead writes the other one.
struct Line {
  std::atomic<uint32_t> met;     // as of all meetings
  std::atomic<uint32_t> rounds;  // that it has begun
  std::atomic<uint32_t> wanted;  // of Python
  std::atomic<uint32_t> is_loaded;
  std::atomic<int32_t> rows[2][2];  // of a round, by extent
};
static_assert(sizeof(Line) <= kLineBytes && std::atomic<int32_t>::is_always_lock_free, "a line is another process's too");

Group group_of(const appl_spread_experts& op) { return {op.page, op.rank, op.num_ranks, op.ranks_each, op.timeout_ms, true}; }
Line& line_of(const Group& group, int rank) { return *reinterpret_cast<Line*>(group.line(rank)); }

void copy_rows(appl_pool& pool, const appl_span& from, float* to, int rows) {
  const size_t width = size_t(from.width);
  parallel_for(pool, rows, int64_t(width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(to + size_t(row) * width, from.data + size_t(row) * size_t(from.stride), width * sizeof(float));
    }
  });
}

}  // namespace

appl_experts over_all(const appl_spread_experts& op) {
  appl_experts all = op.experts;
  const int chosen = op.experts.experts.width, extent = op.experts.x.extent, width = op.experts.out.width;
  all.x = {op.x, op.experts.x.width, op.experts.x.width, extent, 0};
  all.experts = {reinterpret_cast<float*>(op.chosen), chosen, chosen, extent, 0};
  all.factors = {op.factors, chosen, chosen, extent, 0};
  all.out = {op.outputs, chosen * width, chosen * width, extent, 0};
  all.is_apart = 1;
  return all;
}

void check_spread_experts(const appl_spread_experts& op) {
  check_group(group_of(op));
  require(op.max_rows > 0, "spread_experts: no replica has room for rows");
  const appl_experts& own = op.experts;
  require(own.x.data != nullptr && own.experts.data != nullptr && own.factors.data != nullptr && own.out.data != nullptr,
          "spread_experts: a span has no data");
  const bool is_alike = own.x.extent == own.out.extent && own.x.extent == own.experts.extent && own.x.extent == own.factors.extent;
  require(is_alike && own.experts.width == own.factors.width, "spread_experts: spans of one operator differ");
}

RoundRows begin_round(const appl_spread_experts& op, int num_tokens, int num_sampled) {
  const Group group = group_of(op);
  Line& own = line_of(group, op.rank);
  const uint32_t round = own.rounds.load(std::memory_order_relaxed) + 1, parity = round % 2;
  own.rows[parity][APPL_TOKENS].store(num_tokens, std::memory_order_relaxed);
  own.rows[parity][APPL_SAMPLED].store(num_sampled, std::memory_order_relaxed);
  own.rounds.store(round, std::memory_order_release);
  meet(group);
  RoundRows found{};
  for (const int extent : {int(APPL_TOKENS), int(APPL_SAMPLED)}) {
    for (int rank = 0; rank < op.num_ranks; rank += op.ranks_each) {
      if (rank == op.rank / op.ranks_each * op.ranks_each) found.first[extent] = found.total[extent];
      const int rows = line_of(group, rank).rows[parity][extent].load(std::memory_order_relaxed);
      require(rows >= 0, "spread_experts: a replica has less than no rows");
      found.total[extent] += rows;
    }
  }
  return found;
}

void leave_group(const appl_spread_experts& op) { fail(group_of(op)); }

void run_spread_experts(appl_pool& pool, const appl_spread_experts& op, const ExpertsShape& shape, const RoundRows& round, int rows,
                        uint8_t* scratch) {
  const Group group = group_of(op);
  const appl_experts all = over_all(op);
  const int extent = op.experts.x.extent, total = round.total[extent];
  const size_t first = size_t(round.first[extent]);
  require(total <= op.max_rows * (op.num_ranks / op.ranks_each), "spread_experts: replicas have more rows than there is room for");
  if (op.rank % op.ranks_each == 0) {
    copy_rows(pool, op.experts.x, all.x.data + first * size_t(all.x.stride), rows);
    copy_rows(pool, op.experts.experts, all.experts.data + first * size_t(all.experts.stride), rows);
    copy_rows(pool, op.experts.factors, all.factors.data + first * size_t(all.factors.stride), rows);
  }
  meet(group);
  run_experts(pool, all, shape, total, scratch);
  meet(group);
  appl_span made = all.out;
  made.data += first * size_t(made.stride);
  run_mix_experts(pool, {made, op.experts.factors, op.experts.out, op.experts.weigh_input, 0}, rows);
}

}  // namespace appl
