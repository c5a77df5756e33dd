/* Generated from the records in appliance/program/operators.py: `appliance schema --write`. Do not edit. */
#ifndef APPLIANCE_OPERATORS_H
#define APPLIANCE_OPERATORS_H

typedef enum {
  APPL_OP_EMBED = 0,              /* token (and position, and segment) embeddings */
  APPL_OP_RMS_NORM = 1,           /* RMS norm, with the residual sum */
  APPL_OP_LAYER_NORM = 2,         /* layer norm, with the residual sum */
  APPL_OP_HEAD_NORM = 3,          /* norm of each head */
  APPL_OP_LINEAR = 4,             /* matrix product over the canonical layouts, with bias and activation */
  APPL_OP_ACTIVATION = 5,         /* an elementwise activation */
  APPL_OP_GATED_ACTIVATION = 6,   /* activation of the gate times the other half */
  APPL_OP_ROPE = 7,               /* rotary positions */
  APPL_OP_KV_WRITE = 8,           /* store keys and values in the paged cache */
  APPL_OP_PAGED_ATTENTION = 9,    /* attention over the paged cache; prefill, chunks and decode in one batch */
  APPL_OP_ADD = 10,               /* sum of two activations */
  APPL_OP_GATHER_ROWS = 11,       /* pick the rows whose logits are wanted */
  APPL_OP_SOFT_CAP = 12,          /* tanh cap of logits */
  APPL_OP_CHOOSE_EXPERTS = 13,    /* choose the experts of each token */
  APPL_OP_EXPERTS = 14,           /* the chosen experts of each token, and their weighted sum */
  APPL_OP_GATED_ADD = 15,         /* sum with another activation that a gate of each row weighs */
  APPL_OP_SCALE_BY_POSITION = 16, /* a factor that grows with the position */
  APPL_OP_HEAD_LINEAR = 17,       /* a matrix for each head */
  APPL_OP_SHORT_CONV = 18,        /* short causal convolution of each column */
  APPL_OP_GATED_DELTA = 19,       /* gated delta rule over a state of each head */
  APPL_OP_STATE_SPACE = 20,       /* selective state space model over a state of each head */
  APPL_OP_SCALE = 21,             /* multiply with a constant */
  APPL_OP_WHOLE_ATTENTION = 22,   /* attention among the tokens of whole sequences, without a cache */
  APPL_OP_MEAN_ROWS = 23,         /* mean over the tokens of a sequence */
  APPL_OP_SCALE_BY_WEIGHT = 24,   /* multiply with a weight of each column */
  APPL_OP_GAUSSIAN_TOP_K = 25,    /* keep what is far above the mean of its row */
  APPL_OP_MIX_STREAMS = 26,       /* mix residual streams by coefficients of each row */
  APPL_OP_CORRECT_STREAMS = 27,   /* correct residual streams by what became of the first */
  APPL_OP_MATCH_MAGNITUDE = 28,   /* give a row the magnitude of another */
  APPL_OP_COPY = 29,              /* copy of an activation */
  APPL_OP_RG_LRU = 30,            /* real-gated linear recurrent unit of each column */
  APPL_OP_ADAPTER_LINEAR = 31,    /* changes that adapters make to what a Linear gives */
  APPL_OP_ADAPTER_EMBED = 32,     /* changes that adapters make to token embeddings */
  APPL_OP_ADAPTER_EXPERTS = 33,   /* experts, with the changes that adapters make to each */
  APPL_OP_GATHER = 34,            /* make the columns of all ranks known to each */
  APPL_OP_MEET = 35,              /* wait for all ranks */
  APPL_OP_MIX_EXPERTS = 36,       /* the weighted sum of what the experts of each token gave */
  APPL_OP_PLACE_EXPERTS = 37,     /* the places where the chosen experts of each token are */
  APPL_OP_SPREAD_EXPERTS = 38,    /* the chosen experts of each token, which are those of several replicas, and their weighted sum */
  APPL_OP_COUNT = 39,
} appl_operator_kind;

#endif
