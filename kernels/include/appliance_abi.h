/* The C ABI of the native kernel libraries: plain structs, no torch, no Python, no C++.
 *
 * One library is built for each processor level, from the same sources; each exports exactly the functions below. Every size
 * is checked when a weight is packed and when a program is created; the bounds of a step are checked before it runs.
 * A function that returns int32_t returns an appl_status; appl_last_error() then has a sentence about it. Only one thread at
 * a time may use a program, its weights and its pool; the library has no other state.
 */
#ifndef APPLIANCE_ABI_H
#define APPLIANCE_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "appliance_operators.h"

#ifdef __cplusplus
extern "C" {
#endif

#define APPL_PACKED_VERSION 2 /* increased when the panels of any weight change */
#define APPL_ABI_VERSION 26
#define APPL_MAX_STREAMS 8
#define APPL_MAX_RANKS 63
#define APPL_EXPORT __attribute__((visibility("default")))

typedef enum {
  APPL_OK = 0,
  APPL_INVALID_ARGUMENT = 1,
  APPL_OUT_OF_MEMORY = 2,
  APPL_UNSUPPORTED = 3,
  APPL_RANK_FAILED = 4, /* another rank of the group failed or is late: none can go on */
} appl_status;

typedef enum {
  APPL_F32 = 0,
  APPL_F16 = 1,
  APPL_BF16 = 2,
  APPL_INT8 = 3,
  APPL_INT4 = 4,
  APPL_INT5 = 5,
  APPL_INT6 = 6,
  APPL_F8 = 7,   /* e4m3 (fn: no infinities) */
  APPL_E2M1 = 8, /* and so on: codes of four bits, each the place of its value in the layout's book (kernels/cpu/code_book.h) */
  APPL_NF4 = 9,
  APPL_FP4 = 10,
  APPL_IQ4_NL = 11,
  APPL_E5M2 = 12, /* of caches of keys and values alone */
} appl_layout;
typedef enum { APPL_SCALE_F16 = 0, APPL_SCALE_F32 = 1, APPL_SCALE_E8M0 = 2 } appl_scale; /* e8m0: a power of two, of code layouts */
typedef enum { APPL_TOKENS = 0, APPL_SAMPLED = 1 } appl_extent;

typedef enum {
  APPL_ACTIVATION_NONE = 0,
  APPL_ACTIVATION_SILU = 1,
  APPL_ACTIVATION_GELU = 2,
  APPL_ACTIVATION_GELU_TANH = 3,
  APPL_ACTIVATION_RELU = 4,
  APPL_ACTIVATION_RELU2 = 5,
  APPL_ACTIVATION_SIGMOID = 6,
  APPL_ACTIVATION_XIELU = 7, /* of APPL_OP_ACTIVATION alone, as it has parameters */
} appl_activation;

typedef enum {
  APPL_SCORING_SOFTMAX = 0,
  APPL_SCORING_SIGMOID = 1,
  APPL_SCORING_SOFTMAX_OF_CHOSEN = 2,
  APPL_SCORING_SPARSEMIXER = 3,
} appl_scoring;

typedef struct appl_pool appl_pool;
typedef struct appl_weight appl_weight;
typedef struct appl_screen appl_screen;
typedef struct appl_program appl_program;

/* A canonical weight from its translator, row-major; see appliance.kernels.layout.CanonicalWeight. */
typedef struct {
  int32_t layout; /* appl_layout */
  int32_t rows;
  int32_t columns;
  int32_t group_size;     /* divides 256, or equals columns (but int5 and int6); a multiple of 32 (int5) or 16 (int6); 0 for dense */
  int32_t scale_type;     /* appl_scale, of scale and offset */
  int32_t sub_group_size; /* 32, or 16 (int4, int6), in groups of 256; 0 for none */
  const void* data;
  const void* scale;
  const void* offset;       /* NULL for none */
  const int8_t* sub_scale;  /* of each sub-group: a factor of the group's scale */
  const int8_t* sub_offset; /* a factor of the group's offset */
} appl_matrix;

/* The form of a packed weight: all that is needed to use panels that were packed before. */
typedef struct {
  int32_t layout, rows, columns;
  int32_t group_size; /* as in appl_matrix */
  int32_t scale_type;
  int32_t has_offset; /* offsets are stored; an offset of -8 (int4), -16 (int5) or -32 (int6) times the scale is not */
  int32_t zero_point;
  int32_t sub_group_size; /* as in appl_matrix */
  uint64_t bytes;         /* of all panels; an output, and checked if panels are given */
} appl_packed_form;

/* Columns of an activation buffer: row r starts at data + r * stride. */
typedef struct {
  float* data;
  int32_t stride;
  int32_t width;
  int32_t extent; /* appl_extent */
  int32_t reserved;
} appl_span;

/* Absent spans and vectors have data NULL. Vectors and rope tables are borrowed and must live as long as the program. */
typedef struct {
  const appl_weight* table;
  const appl_weight* position_table;
  appl_span out;
  float scale;
  int32_t position_offset;
  const float* type_table; /* num_types rows of out.width; NULL for none */
  int32_t num_types;
  int32_t missing_row; /* the row of tokens beyond the table; negative: it has all */
  int32_t first_own;   /* of one of several ranks: the first token of its table, whose rows alone it writes */
  int32_t num_tokens;  /* of the tables of all ranks; 0: the table is whole */
  int32_t takes_given; /* a step may give embeddings in place of rows of the table */
  float given_scale;   /* their factor, in place of `scale` */
} appl_embed;

typedef struct { /* RMS and layer norm */
  appl_span x, out, residual;
  const float* weight; /* NULL for none, as bias */
  const float* bias;
  float eps;
  float scale;        /* of x, before it is added to the residual */
  int32_t for_linear; /* only the next Linear reads `out`: it need not be written */
  int32_t reserved;
} appl_norm;

typedef struct {
  appl_span x;
  appl_span out;       /* may be x */
  const float* weight; /* NULL for none, as bias */
  const float* bias;
  int32_t num_heads, head_dim;
  float eps;
  int32_t is_layer_norm; /* RMS norm otherwise */
  int32_t by_head;       /* weight and bias are num_heads * head_dim long, head_dim otherwise */
  int32_t reserved;
} appl_head_norm;

typedef struct {
  appl_span x, out;
  const appl_weight* weight;
  const float* bias;
  int32_t activation;
  int32_t accumulate;
  const appl_screen* screen; /* of the weight, for steps with num_largest; NULL for none */
  int32_t first_token;       /* of what is screened: the token of the weight's first row */
  int32_t reserved;
} appl_linear;

typedef struct {
  appl_span x, out;
  const float* parameters; /* of xielu: alpha_p, alpha_n, beta and eps; NULL for any other activation */
  int32_t activation;
  int32_t reserved;
} appl_pointwise;

typedef struct {
  appl_span gate, up, out;
  int32_t activation;
  int32_t from_linear; /* the operator before is a Linear without bias that writes gate and up, and no other operator reads these */
  int32_t for_linear;  /* as in appl_norm */
  int32_t reserved;
} appl_gated;

typedef struct {
  appl_span x;
  const float* table;
  int32_t table_rows, num_heads, head_dim, rotary_dim;
  int32_t interleaved;
  int32_t reserved;
} appl_rope;

typedef struct {
  appl_span k;
  appl_span v;   /* no data if the cache's values are columns of its keys */
  int32_t cache; /* the index of a cache of the program */
  int32_t reserved;
} appl_kv_write;

typedef struct {
  appl_span q, out;
  int32_t cache, num_heads;
  int32_t window; /* 0 for none */
  float scale;
  float soft_cap;      /* 0 for none */
  int32_t chunk;       /* a query sees only keys of its own chunk of so many tokens; 0 for none */
  const float* sinks;  /* the logit of a key without value, one a head; NULL for none */
  const float* slopes; /* a key's score gets slope * (its position - the query's), one a head; NULL for none */
} appl_attention;

/* Attention among the tokens of a step, which holds each sequence whole; no cache. A query at i sees keys from i - before to i + after. */
typedef struct {
  appl_span q, k, v, out;
  int32_t num_heads, num_kv_heads, head_dim;
  int32_t before, after; /* negative: all */
  float scale;
  const float* bias;  /* num_heads rows of 2 * bias_reach - 1 numbers, added to the scores: that of key j is at j - i + bias_reach - 1 */
  int32_t bias_reach; /* the longest sequence */
  int32_t reserved;
} appl_whole_attention;

typedef struct { /* Add, Copy, GatherRows, MeanRows */
  appl_span x, out;
} appl_move;

typedef struct {
  appl_span x;
  float cap;
  int32_t reserved;
} appl_soft_cap;

typedef struct {
  appl_span x;
  float factor;
  int32_t reserved;
} appl_factor;

typedef struct {
  appl_span x, out;
  const float* weight; /* one a column, or one for all with is_one */
  int32_t is_one;
  int32_t reserved;
} appl_weight_scale;

typedef struct {
  appl_span x;
  float num_deviations;
  int32_t reserved;
} appl_top_k;

typedef struct { /* MixStreams, CorrectStreams */
  appl_span streams[APPL_MAX_STREAMS];
  appl_span coefficients;
  appl_span target; /* of CorrectStreams */
  int32_t num_streams;
  int32_t reserved;
} appl_streams;

typedef struct {
  appl_span x, reference;
  float least;
  int32_t reserved;
} appl_magnitude;

/* Spans of experts hold int32 numbers in place of floats. */
typedef struct {
  appl_span logits, experts, factors;
  const float* correction;   /* one an expert; NULL for none, as expert_scale */
  const float* expert_scale; /* a factor of an expert's own */
  int32_t scoring;           /* appl_scoring */
  int32_t renormalize;
  int32_t num_groups, num_chosen_groups;
  int32_t adds_two; /* a group's score is the sum of its two largest, else the largest */
  float scale;
  float jitter; /* of sparsemixer */
  int32_t reserved;
} appl_route;

typedef struct {
  appl_span x, experts, factors, out;
  const appl_weight* gate; /* NULL: `up` has each expert's rows of it before those of up; or there are no gates */
  const appl_weight *up, *down;
  const float *gate_bias, *up_bias, *down_bias;
  int32_t num_experts, width, activation, is_gated, weigh_input;
  float limit; /* 0 for none */
  float alpha, up_offset;
  int32_t first_own, num_own; /* the experts whose weights and biases are given */
  int32_t is_apart;           /* out has the output of each choice of a row, side by side and without its factor, where it is given */
  int32_t reserved;
} appl_experts;

/* Experts of which a replica has some, for the rows of all replicas of its group; out as if it had all. Every step of a program with such
 * operators is a round, which the other replicas run too. `page`: as in appl_meeting, with a line for each rank of each replica, in
 * order. x, chosen, factors, outputs: memory that all share, with room for max_rows rows of each replica; see appliance.kernels.lockstep. */
typedef struct {
  appl_experts experts; /* of the replica's own rows */
  void* page;
  float *x, *factors, *outputs;
  int32_t* chosen;
  int32_t rank, num_ranks, ranks_each; /* ranks of a replica have equal rows, of which the first one brings them */
  int32_t timeout_ms, max_rows;
  int32_t reserved;
} appl_spread_experts;

/* The sum of what the experts of a row gave, in the order of its choices: x is as many outputs wide as there are factors. */
typedef struct {
  appl_span x, factors, out;
  int32_t weigh_input; /* the inputs had the factors */
  int32_t reserved;
} appl_mix_experts;

/* The place of each choice of a row: of the places of its expert e, from places[starts[e]] on, number (row + e) modulo how many there are.
 * Their owner may change tables and counters between steps. */
typedef struct {
  appl_span experts, out; /* int32: experts as they were chosen, and places */
  const int32_t* starts;  /* one an expert, and num_places */
  const int32_t* places;  /* num_places of them */
  int64_t* loads;         /* one an expert: the rows that chose it are added */
  int32_t num_experts, num_places;
} appl_place_experts;

typedef struct {
  appl_span x, gate, out;
} appl_gated_add;

typedef struct { /* in place: x *= 1 + scale * ln(1 + (position + offset) / length), in whole lengths */
  appl_span x;
  int32_t length, offset;
  float scale;
  int32_t reserved;
} appl_position_scale;

typedef struct { /* out of each head: its rows of the weight times its columns of x, then its columns of the tail */
  appl_span x, out;
  appl_span tail; /* no data for none */
  const appl_weight* weight;
  int32_t num_heads;
  int32_t reserved;
} appl_head_linear;

/* Operators with states; see appliance.program.states. `state` is the index of a state of the program that no other operator has. */
typedef struct {
  appl_span x, out;
  const float* weight; /* kernel_size numbers of each column */
  const float* bias;
  int32_t state, kernel_size, activation;
  int32_t reserved;
} appl_short_conv;

typedef struct {
  appl_span q, k, v, decay, beta, out;
  const float *a_log, *dt_bias;
  int32_t state, num_key_heads, num_value_heads, by_channel;
  float beta_scale;
  float reserved;
} appl_gated_delta;

typedef struct {
  appl_span x, b, c, dt, out;
  const float *a_log, *d;
  const float* dt_bias; /* NULL for none */
  int32_t state, num_heads, num_groups, by_state;
  float dt_min, dt_max;
} appl_state_space;

/* The change that one adapter makes at one place. `down` has for each part ranks[part] rows of x.width numbers, `up` as many rows of the
 * part's width. is_whole: there is one part, whose `up` is a matrix without `down`: for each 64 columns of `out` (the last may be fewer)
 * x.width rows of them; of an embedding, `down` is it, with a row a token. stretch, shift: a number a column of `out`, NULL for none.
 * ranks: NULL if the adapter changes nothing here. */
typedef struct {
  const void* down;
  const void* up;
  const void *stretch, *shift;
  const int32_t* ranks;
  int32_t is_whole;
  int32_t reserved;
} appl_adapter_map;

typedef struct {
  appl_span x, out;
  const int32_t* widths;        /* of the parts, side by side in `out` */
  const appl_adapter_map* maps; /* one a slot; those of a slot that no step uses may change */
  int32_t num_parts, num_slots, max_rank;
  int32_t layout; /* of the maps: APPL_F32 or APPL_BF16 */
} appl_adapter_linear;

typedef struct { /* `down` has a row for each token */
  appl_span out;
  const appl_adapter_map* maps; /* one a slot */
  int32_t num_tokens;           /* of the vocabulary; others are not changed */
  int32_t num_slots, max_rank, layout;
  float scale;
  int32_t reserved;
} appl_adapter_embed;

typedef struct {
  appl_experts experts;
  const appl_adapter_map* maps; /* a slot has two for each own expert: of gate and up, side by side, and of down */
  int32_t num_slots, max_rank, layout;
  int32_t reserved;
} appl_adapter_experts;

typedef struct {
  appl_span x, input_gate, recurrence_gate, out;
  const float *decay, *input_bias, *recurrence_bias;
  int32_t state;
  int32_t reserved;
} appl_rg_lru;

/* APPL_OP_GATHER and APPL_OP_MEET: a rank waits until all others of its group are here as often as it is. `page`: memory that they share,
 * zeroed at first, of 64 bytes for the group and 64 for each rank. x: columns that all ranks have written, each its own. */
typedef struct {
  appl_span x; /* of APPL_OP_GATHER */
  void* page;
  int32_t rank, num_ranks, timeout_ms;
  int32_t reserved;
} appl_meeting;

typedef struct {
  int32_t kind; /* appl_operator_kind */
  int32_t reserved;
  union {
    appl_embed embed;
    appl_norm norm;
    appl_head_norm head_norm;
    appl_linear linear;
    appl_pointwise pointwise;
    appl_gated gated;
    appl_rope rope;
    appl_kv_write kv_write;
    appl_attention attention;
    appl_move move;
    appl_soft_cap soft_cap;
    appl_route route;
    appl_experts experts;
    appl_gated_add gated_add;
    appl_position_scale position_scale;
    appl_head_linear head_linear;
    appl_short_conv short_conv;
    appl_gated_delta gated_delta;
    appl_state_space state_space;
    appl_factor scale;
    appl_whole_attention whole_attention;
    appl_weight_scale weight_scale;
    appl_top_k top_k;
    appl_streams streams;
    appl_magnitude magnitude;
    appl_rg_lru rg_lru;
    appl_adapter_linear adapter_linear;
    appl_adapter_embed adapter_embed;
    appl_adapter_experts adapter_experts;
    appl_meeting meeting;
    appl_mix_experts mix_experts;
    appl_place_experts place_experts;
    appl_spread_experts spread_experts;
  } as;
} appl_operator;

/* One cache of a program. keys and values are zeroed memory of num_blocks times their block bytes each, aligned to 64, where block bytes
 * are a multiple of 64 and at least appl_kv_block_bytes(...). Caches of one group share block tables. Caches of different groups may share
 * memory (a lane of the pool's blocks), as a block is of one group at a time. */
typedef struct {
  void* keys;
  void* values;                                /* NULL: of the one KV head, they are the first value_dim columns of its keys */
  uint64_t key_block_bytes, value_block_bytes; /* from one block to the next */
  int32_t num_kv_heads, key_dim, value_dim;
  int32_t group; /* from 0 on */
} appl_kv_cache;

/* One state of a program: num_states slots (appl_limits) of `size` floats each, aligned to 64. */
typedef struct {
  float* data;
  uint64_t size;
} appl_state;

typedef struct {
  int32_t max_tokens, max_seqs, max_sampled, max_model_len;
  int32_t block_size, num_blocks;
  int32_t kv_layout; /* APPL_F32, APPL_F16, APPL_BF16; or APPL_INT8, APPL_F8, APPL_E5M2: codes, a scale a token and head */
  int32_t quantize_activations;
  int32_t num_states; /* slots of each state */
} appl_limits;

/* One step; see appliance.kernels.interface.StepInputs. slot_mapping has num_tokens slots for each group of caches, one group behind the
 * other; block_tables has num_seqs rows of block_table_stride for each. */
typedef struct {
  int32_t num_tokens, num_seqs, num_sampled, block_table_stride;
  int32_t num_groups, num_pieces;
  const int32_t *token_ids, *positions, *slot_mapping, *query_start, *seq_lens, *block_tables, *sampled_rows;
  const int32_t* num_largest;     /* so many largest logits of each row are exact, 0 for all; others may be any smaller ones; NULL: all */
  int32_t past_rows, past_stride; /* of past_table */
  const int32_t *past_table, *past_row, *num_past;                        /* tokens that do not count in num_largest; NULL: none */
  const int32_t *piece_first, *piece_start, *piece_source, *piece_target; /* NULL exactly if the program has no states */
  const int32_t* token_types;                                             /* the segment of each token; NULL: all 0 */
  const int32_t* adapter_slots; /* of each sequence, negative for none; NULL: none has an adapter */
  const float* adapter_scales;
  const float* embeds;     /* num_embeds rows of embeds_width: embeddings in place of rows of the table; NULL: none */
  const int32_t* embed_of; /* the row of each token there; negative: the token has its own */
  int32_t num_embeds, embeds_width;
} appl_step;

/* Sampling of num_rows rows; see appliance.kernels.sampling. Outputs may be NULL if no row requests log-probabilities. */
typedef struct {
  int32_t num_rows, vocab_size, logits_stride, token_table_stride, mask_stride, logprobs_stride;
  int32_t raw_logprobs; /* of the logits as given, else of the processed ones */
  int32_t normalize;    /* log-probabilities, else logits */
  const float *logits, *temperature, *top_p, *min_p, *repetition_penalty, *presence_penalty, *frequency_penalty;
  const int32_t* top_k;
  const uint64_t *seed, *position;
  const int32_t *token_table, *token_row, *num_prompt_tokens, *num_tokens;
  const int32_t *bias_start, *bias_ids;
  const float* bias_values;
  const int32_t *forbidden_start, *forbidden_ids, *mask_row;
  const uint32_t* mask_bits;
  const int32_t *given_token_ids, *num_logprobs;
  int32_t *token_ids, *logprob_ids, *ranks;
  float* logprobs;
} appl_sampling;

APPL_EXPORT int32_t appl_abi_version(void);
APPL_EXPORT const char* appl_level(void);
APPL_EXPORT const char* appl_last_error(void); /* of the calling thread */

/* Creates a pool of num_threads threads, including the calling one. Idle threads sleep. */
APPL_EXPORT int32_t appl_pool_create(int32_t num_threads, appl_pool** pool);
APPL_EXPORT void appl_pool_destroy(appl_pool* pool);
/* Binds thread i of the pool to processor cpus[i]; thread 0 is the calling one. There are at least as many as threads. */
APPL_EXPORT int32_t appl_pool_bind(appl_pool* pool, const int32_t* cpus, int32_t num_cpus);
/* Has the calling thread, and those that it starts from then on, take memory of some NUMA nodes: of the one as long as it has any, or of
 * several in turn. */
APPL_EXPORT int32_t appl_prefer_nodes(const int32_t* nodes, int32_t num_nodes);

/* Packs a matrix into the pool's memory, which is freed with the pool. */
APPL_EXPORT int32_t appl_weight_pack(appl_pool* pool, const appl_matrix* matrix, appl_weight** weight);
APPL_EXPORT void appl_weight_destroy(appl_weight* weight);
APPL_EXPORT uint64_t appl_weight_bytes(const appl_weight* weight);

/* Packs in pieces: `form_of` gives the form of some rows of a matrix of num_rows, `reserve` allocates, and `fill` packs
 * rows from first_row on. Both counts are multiples of 16 except at the end; several threads may fill pieces at once.
 * APPL_UNSUPPORTED: the rows need offsets, but the form has none. */
APPL_EXPORT int32_t appl_weight_form_of(const appl_matrix* rows, int32_t num_rows, appl_packed_form* form);
APPL_EXPORT int32_t appl_weight_reserve(appl_pool* pool, const appl_packed_form* form, appl_weight** weight);
APPL_EXPORT int32_t appl_weight_fill(appl_weight* weight, int32_t first_row, const appl_matrix* rows);

/* Creates a screen in the pool's memory: an int8 copy of a dense weight, or a six-bit copy of an int8 one, which shows where the
 * largest products with an input may be. appl_screen_most_rows gives the largest number of rows for which it is used. */
APPL_EXPORT int32_t appl_screen_create(appl_pool* pool, const appl_weight* weight, appl_screen** screen);
APPL_EXPORT void appl_screen_destroy(appl_screen* screen);
APPL_EXPORT uint64_t appl_screen_bytes(const appl_screen* screen);
APPL_EXPORT int32_t appl_screen_most_rows(const appl_screen* screen);

/* For files of packed weights: the form and the panels of a weight, and a weight over such panels, which are borrowed,
 * read-only, and aligned to 64 bytes. Panels of another packed version are not compatible. */
APPL_EXPORT int32_t appl_packed_version(void);
APPL_EXPORT void appl_weight_form(const appl_weight* weight, appl_packed_form* form);
APPL_EXPORT const void* appl_weight_panels(const appl_weight* weight);
APPL_EXPORT int32_t appl_weight_adopt(const appl_packed_form* form, const void* panels, appl_weight** weight);

/* A checksum that detects damage, but no deliberate change, at the speed of memory. pool NULL: on this thread alone. */
APPL_EXPORT int32_t appl_checksum(appl_pool* pool, const void* data, uint64_t bytes, uint64_t* sum);

/* Bytes of the keys (or the values) of one cache in a block, with their scales: a multiple of 64. */
APPL_EXPORT uint64_t appl_kv_block_bytes(const appl_limits* limits, int32_t num_kv_heads, int32_t dim);

APPL_EXPORT int32_t appl_program_create(appl_pool* pool, const appl_operator* operators, int32_t num_operators, const appl_kv_cache* caches,
                                        int32_t num_caches, const appl_state* states, int32_t num_states, const appl_limits* limits,
                                        appl_program** program);
APPL_EXPORT void appl_program_destroy(appl_program* program);
/* Makes two programs of one pool, which never run at once, use one workspace. */
APPL_EXPORT void appl_program_share_workspace(appl_program* program, appl_program* other);
APPL_EXPORT uint64_t appl_program_workspace_bytes(const appl_program* program);
APPL_EXPORT int32_t appl_program_run(appl_program* program, const appl_step* step);
/* Begins a step on another thread of the pool and returns. The step and its arrays are borrowed, and the program and its pool must not
 * be called for anything else, until the step is finished (the caller helps) or cancelled (it ends after the operator that runs, and
 * what it wrote is undefined). A pool of one thread runs the step when it is finished. */
APPL_EXPORT int32_t appl_program_start(appl_program* program, const appl_step* step);
APPL_EXPORT int32_t appl_program_finish(appl_program* program);
APPL_EXPORT void appl_program_cancel(appl_program* program);
/* From the next step on, adds the seconds of operator i to seconds[i]; NULL ends that, and then costs nothing. */
APPL_EXPORT void appl_program_time_operators(appl_program* program, double* seconds);
/* The keys that cascade attention saved in the last step, in each layer of the first group with full attention: it read a prefix once for
 * several decodes. */
APPL_EXPORT uint64_t appl_program_shared_keys(const appl_program* program);
/* pairs: source and destination blocks, num_pairs times. */
APPL_EXPORT int32_t appl_program_copy_blocks(appl_program* program, const int32_t* pairs, int32_t num_pairs);

APPL_EXPORT int32_t appl_sample(appl_pool* pool, const appl_sampling* sampling);

/* Probes, repeated for the given seconds: bytes per second read from a buffer; operations per second (2 per multiply-add), in
 * registers, of the products that the level's tiles of a layout use. */
typedef struct appl_rates {
  double best; /* of one repetition: the machine's limit */
  double mean; /* of all repetitions: its actual rate */
} appl_rates;
APPL_EXPORT int32_t appl_measure_read(appl_pool* pool, uint64_t buffer_bytes, double seconds, appl_rates* bytes_per_second);
APPL_EXPORT int32_t appl_measure_peak(appl_pool* pool, int32_t layout, double seconds, appl_rates* operations_per_second);

#ifdef __cplusplus
}
#endif
#endif
