// The exported functions.
#include "appliance_abi.h"

#include <climits>
#include <cstring>

#include "matrix.h"
#include "nodes.h"
#include "appliance_switches.h"
#include "program.h"
#include "screen.h"
#include "status.h"

namespace {

constexpr int kMaxThreads = 1024;
thread_local char last_error[256] = "";

}  // namespace

void appl::set_last_error(const char* message) { std::strncpy(last_error, message, sizeof(last_error) - 1); }

int32_t appl_abi_version(void) { return APPL_ABI_VERSION; }
const char* appl_level(void) { return APPL_LEVEL; }
const char* appl_last_error(void) { return last_error; }

int32_t appl_pool_create(int32_t num_threads, appl_pool** pool) {
  return appl::guarded([&] {
    appl::require(num_threads >= 1 && num_threads <= kMaxThreads, "num_threads must be 1 to 1024");
    appl::require(appl::may_use_matrix_unit(), "this kernel of the operating system gives no program the AMX registers");
    *pool = new appl_pool(num_threads);
  });
}
void appl_pool_destroy(appl_pool* pool) { delete pool; }
int32_t appl_pool_bind(appl_pool* pool, const int32_t* cpus, int32_t num_cpus) {
  return appl::guarded([&] {
    appl::require(num_cpus >= pool->num_threads(), "there are fewer processors than threads");
    for (int32_t i = 0; i < num_cpus; ++i) appl::require(cpus[i] >= 0, "a processor has a negative number");
    pool->bind(cpus);
  });
}
int32_t appl_prefer_nodes(const int32_t* nodes, int32_t num_nodes) {
  return appl::guarded([&] { appl::prefer_nodes(nodes, num_nodes); });
}

int32_t appl_weight_pack(appl_pool* pool, const appl_matrix* matrix, appl_weight** weight) {
  return appl::guarded([&] { *weight = appl::pack(*pool, *matrix); });
}
void appl_weight_destroy(appl_weight* weight) { delete weight; }
uint64_t appl_weight_bytes(const appl_weight* weight) { return weight->bytes(); }

int32_t appl_weight_form_of(const appl_matrix* rows, int32_t num_rows, appl_packed_form* form) {
  return appl::guarded([&] { *form = appl::form_of(*rows, num_rows); });
}
int32_t appl_weight_reserve(appl_pool* pool, const appl_packed_form* form, appl_weight** weight) {
  return appl::guarded([&] { *weight = appl::reserve(*pool, *form); });
}
int32_t appl_weight_fill(appl_weight* weight, int32_t first_row, const appl_matrix* rows) {
  return appl::guarded([&] { appl::fill(*weight, first_row, *rows); });
}

int32_t appl_screen_create(appl_pool* pool, const appl_weight* weight, appl_screen** screen) {
  return appl::guarded([&] { *screen = appl::make_screen(*pool, *weight); });
}
void appl_screen_destroy(appl_screen* screen) { delete screen; }
uint64_t appl_screen_bytes(const appl_screen* screen) { return screen->bytes(); }
int32_t appl_screen_most_rows(const appl_screen* screen) { return screen->most_rows(); }

int32_t appl_packed_version(void) { return APPL_PACKED_VERSION; }
void appl_weight_form(const appl_weight* weight, appl_packed_form* form) { *form = appl::form_of(*weight); }
const void* appl_weight_panels(const appl_weight* weight) { return weight->data; }
int32_t appl_weight_adopt(const appl_packed_form* form, const void* panels, appl_weight** weight) {
  return appl::guarded([&] { *weight = appl::adopt(*form, panels); });
}
int32_t appl_checksum(appl_pool* pool, const void* data, uint64_t bytes, uint64_t* sum) {
  return appl::guarded([&] { *sum = appl::checksum(pool, data, size_t(bytes)); });
}

uint64_t appl_kv_block_bytes(const appl_limits* limits, int32_t num_kv_heads, int32_t dim) {
  return appl::KvGeometry(*limits, num_kv_heads, dim, dim).key_block_bytes();
}

int32_t appl_program_create(appl_pool* pool, const appl_operator* operators, int32_t num_operators, const appl_kv_cache* caches,
                            int32_t num_caches, const appl_state* states, int32_t num_states, const appl_limits* limits,
                            appl_program** program) {
  return appl::guarded(
      [&] { *program = new appl_program(*pool, operators, num_operators, caches, num_caches, states, num_states, *limits); });
}
void appl_program_destroy(appl_program* program) { delete program; }
void appl_program_share_workspace(appl_program* program, appl_program* other) { program->share_workspace(*other); }
uint64_t appl_program_workspace_bytes(const appl_program* program) { return program->workspace_bytes(); }
int32_t appl_program_run(appl_program* program, const appl_step* step) {
  return appl::guarded([&] { program->run(*step); });
}
int32_t appl_program_start(appl_program* program, const appl_step* step) {
  return appl::guarded([&] { program->start(*step); });
}
int32_t appl_program_finish(appl_program* program) {
  return appl::guarded([&] { program->finish(); });
}
void appl_program_cancel(appl_program* program) { program->cancel(); }
void appl_program_time_operators(appl_program* program, double* seconds) { program->time_operators(seconds); }
uint64_t appl_program_shared_keys(const appl_program* program) { return program->shared_keys(); }
void appl_program_disable_cascade(appl_program* program) { program->disable_cascade(); }
int32_t appl_program_copy_blocks(appl_program* program, const int32_t* pairs, int32_t num_pairs) {
  return appl::guarded([&] { program->copy_blocks(pairs, num_pairs); });
}
