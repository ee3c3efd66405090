/* Numbers of a request that jansson would refuse or change: see protocol_numbers.c. */
#ifndef SKEP_TRACKER_PROTOCOL_NUMBERS_H
#define SKEP_TRACKER_PROTOCOL_NUMBERS_H

#include "wire/tracker_frame.h"

/*
 * Appends a JSON text in which such numbers are strings with a mark, and strings that look like one
 * are told apart. What is no JSON stays none.
 * @return SKEP_DATA_LOSS for a number that is longer than any reader takes;
 * SKEP_RESOURCE_EXHAUSTED.
 */
SKEP_MUST_CHECK skep_status tracker_numbers_mark(struct tracker_text text, struct bytes *out,
                                                 struct skep_error *err);
/* The same without marks, for those who read answers: reals stand for large whole numbers, null for
 * what is not finite. */
SKEP_MUST_CHECK skep_status tracker_numbers_soften(struct tracker_text text, struct bytes *out,
                                                   struct skep_error *err);

/* Whether a value of a marked text is such a number; its text is a view of it. */
bool tracker_number(const json_t *value, struct tracker_text *token);
/* The text of a string of a marked text, absent if it is none: a view of it. */
struct tracker_text tracker_marked_text(const json_t *value);
/* The value of a number's text. */
double tracker_number_value(struct tracker_text token);

#endif
