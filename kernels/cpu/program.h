// A program: its operators with bound memory, checked once and run step by step.
#pragma once

#include <atomic>
#include <climits>
#include <exception>
#include <memory>
#include <vector>

#include "adapters.h"
#include "appliance_abi.h"
#include "cascade.h"
#include "experts.h"
#include "head_linear.h"
#include "kv_cache.h"
#include "linear.h"
#include "lockstep.h"
#include "memory.h"
#include "pool.h"
#include "screen.h"

struct appl_program {
 public:
  // Throws appl::Error if an operator's sizes do not fit together.
  appl_program(appl_pool& pool, const appl_operator* operators, int num_operators, const appl_kv_cache* caches, int num_caches,
               const appl_state* states, int num_states, const appl_limits& limits);

  ~appl_program() { cancel(); }

  // Runs a step. Throws appl::Error, before anything has run, if the step is out of bounds.
  void run(const appl_step& step);
  // Starts a step on another thread, while the caller does something else. The step is borrowed, and nothing else may run, until the
  // caller calls `finish` or `cancel`. `finish` helps, and throws the step's error; `cancel` ends the step after the operator that runs.
  void start(const appl_step& step);
  void finish();
  void cancel();
  // Adds the seconds of operator i to seconds[i] from the next run on; null ends it.
  void time_operators(double* seconds) { operator_seconds_ = seconds; }
  void copy_blocks(const int32_t* pairs, int num_pairs);
  void disable_cascade() { shares_prefixes_ = false; }
  // The shared keys of the last step; see Cascade.
  uint64_t shared_keys() const;
  // Both use the larger workspace from now on; they must not run at once.
  void share_workspace(appl_program& other);
  size_t workspace_bytes() const { return workspace_->bytes() + constant_bytes_; }

 private:
  // An operator, and for a Linear the form of its input.
  struct Bound {
    appl_operator op;
    appl::PreparedShape input{};
    bool input_is_ready = false;  // an earlier Linear prepared the same activations
    appl_operator norm{};         // the norm that is fused into the Linear's preparation; set in both operators
    bool is_normed(int rows) const { return norm.as.norm.weight != nullptr && rows >= appl::kMinNormedRows; }
    appl_gated gated{};  // the next gated activation, if it is fused into the Linear; set in both operators
    bool is_gated(int rows) const { return gated.out.data != nullptr && rows >= appl::kMinGatedRows; }
    appl::PreparedShape next{};  // the form in which its output goes to the next Linear, from min_rows_for_next rows on
    int min_rows_for_next = INT_MAX;
    bool is_next = false;  // that next Linear: its input has separate memory and is prepared from min_rows_prepared rows on
    int min_rows_prepared = INT_MAX;
    appl::ExpertsShape experts{};    // the sizes of an operator of experts
    appl::HeadLinearShape heads{};   // the same of a matrix for each head
    appl::PreparedShape rounded{};   // the form in which its screen, if any, reads the input
    std::vector<float> constants{};  // of an operator with a state: a vector in another order
  };

  void bind(const appl_operator& op);
  void bind_linear(Bound& bound);
  void bind_adapters(Bound& bound);
  void bind_screen(Bound& linear);
  void bind_norm(Bound& linear);
  void bind_next(Bound& linear);
  void forget_overwritten(const appl_operator& op);
  void bind_cache(const appl_kv_cache& cache);
  void bind_states(const appl_state* states, int count);
  void bind_state(Bound& bound);
  void check_step(const appl_step& step) const;
  void check_tables(const appl_step& step) const;
  void run_operators(const appl_step& step, double* seconds);
  void run_own(const appl_step& step, double* seconds);
  void run_states(const appl_step& step);
  void run_timed(const appl_step& step, double* seconds);
  void run_ahead() noexcept;
  void settle();
  void execute(const Bound& bound, const appl_step& step);
  void bind_gated(Bound& bound);
  void prepare(const Bound& linear, int rows);
  void execute_linear(const Bound& bound, int rows);
  static bool is_screened(const appl_linear& op, const appl_step& step);
  void execute_screened(const Bound& bound, const appl_step& step);
  int max_rows(const appl_span& span) const;
  const appl::AdapterRows& adapted(const appl_span& span) const { return span.extent == APPL_TOKENS ? adapted_tokens_ : adapted_samples_; }
  bool overlaps(const appl_span& a, const appl_span& b) const;

  // The workspace: prepared inputs of Linears, those of Linears after gated activations, and scratch for the operator that runs.
  uint8_t* prepared_memory() const { return workspace_->as<uint8_t>(); }
  uint8_t* next_memory() const { return prepared_memory() + prepared_bytes_; }
  template <class T>
  T* scratch() const {
    return reinterpret_cast<T*>(next_memory() + next_bytes_);
  }

  appl_pool& pool_;
  const appl_limits limits_;
  bool shares_prefixes_ = true;
  int first_spread_ = -1;  // the operator of experts that replicas have among them, from which a round takes its group
  appl::RoundRows round_{};
  std::vector<appl::KvLayer> layers_;
  std::vector<appl_state> states_;
  std::vector<bool> has_operator_;  // by state
  std::vector<Bound> operators_;
  std::shared_ptr<appl::Memory> workspace_;
  size_t prepared_bytes_ = 0, next_bytes_ = 0;
  size_t normed_bytes_ = 0;   // of a normed row
  size_t screen_bytes_ = 0;   // of the screen's scratch
  size_t experts_bytes_ = 0;  // of the scratch of experts, and of matrices for each head
  size_t states_bytes_ = 0;   // of the scratch of operators with states
  size_t constant_bytes_ = 0;
  size_t whole_bytes_ = 0;    // of the scratch of attention without a cache
  size_t adapter_bytes_ = 0;  // of the scratch of adapters; 0 for a program without places for them
  int num_adapter_slots_ = INT_MAX;
  appl::AdapterRows adapted_tokens_, adapted_samples_;  // of the current step
  int embeds_width_ = 0;                                // of what a step may give in place of tokens; 0: nothing
  int num_types_ = 1;                                   // of tokens
  appl::ScreenPauses pauses_;
  // Layers that share block tables, and which of these sequences read together in the current step.
  struct Group {
    appl::Cascade cascade;
    bool sees_all = false;  // some attention has no window
  };
  std::vector<Group> groups_;
  int max_heads_ = 0;  // the most attention heads
  int vocabulary_;
  double* operator_seconds_ = nullptr;  // borrowed; one per operator

  // A step that was started and is not finished; until then its seconds are kept separately, if they are wanted.
  const appl_step* ahead_ = nullptr;
  bool is_led_ = false;  // another thread of the pool leads it; else it has not begun
  std::atomic<bool> is_cancelled_{false};
  std::exception_ptr failure_;
  std::vector<double> ahead_seconds_;

  // The input in the prepared memory: while binding, to find reuse; while running, to reuse it. It may be prepared by a gated Linear.
  appl_span prepared_span_{};
  appl::PreparedShape prepared_shape_{};
  appl::Prepared prepared_, next_;
};

namespace appl {

// Throws Error if the operator cannot be run: spans, weights or vectors are null or do not fit.
void check_operator(const appl_operator& op, const std::vector<KvLayer>& layers, const std::vector<appl_state>& states,
                    const appl_limits& limits);

// The spans that an operator writes, `count` of them.
struct Written {
  appl_span spans[APPL_MAX_STREAMS];
  int count;
};
Written written_by(const appl_operator& op);

}  // namespace appl
