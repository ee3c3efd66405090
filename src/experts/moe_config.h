/* What a mixture-of-experts model's `config.json` says of its experts' arithmetic. Bytes in, yes or
 * no out; no files are touched. Thread: any. */
#ifndef SKEP_EXPERTS_MOE_CONFIG_H
#define SKEP_EXPERTS_MOE_CONFIG_H

#include <stddef.h>
#include <skep/status.h>

enum { MOE_CONFIG_LIMIT_BYTES = 4 << 20 }; /* published ones have a few KiB */

/*
 * Checks that experts with the activation that it names (`hidden_act`, `hidden_activation`) compute
 * what "swiglu" does. Says so of a config that names none.
 * @return SKEP_FAILED_PRECONDITION for another activation; SKEP_DATA_LOSS, with what is wrong, if
 * it is no JSON object, too long, nested too deeply, or its activation is no text;
 *         SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status moe_config_check(const void *data, size_t len, struct skep_error *err);

#endif
