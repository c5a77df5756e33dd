/* Switches of a bound program. They change how it computes, and no number that it gives. */
#ifndef APPLIANCE_SWITCHES_H
#define APPLIANCE_SWITCHES_H

#include "appliance_abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* From now on decodes read by themselves what their block tables share (see appl_program_shared_keys). */
APPL_EXPORT void appl_program_disable_cascade(appl_program* program);

#ifdef __cplusplus
}
#endif

#endif
