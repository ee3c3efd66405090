/**
 * @file skep/status.h
 * Status codes and error sentences. Every fallible function of Skep returns a `skep_status`
 * and takes a nullable `struct skep_error *` as its last argument.
 *
 * Names and numbers are gRPC's canonical codes (grpc/status.h in the gRPC project), so that
 * gateways can pass them through unchanged.
 */
#ifndef SKEP_STATUS_H
#define SKEP_STATUS_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define SKEP_API __attribute__((visibility("default")))
#define SKEP_MUST_CHECK __attribute__((warn_unused_result))
#define SKEP_PRINTF(format_index, first_argument)                                                  \
    __attribute__((format(printf, format_index, first_argument)))
#else
#define SKEP_API
#define SKEP_MUST_CHECK
#define SKEP_PRINTF(format_index, first_argument)
#endif

/** X(name, number, text): the one table that makes the enum, the names and the texts. */
#define SKEP_STATUS_MAP(X)                                                                         \
    X(OK, 0, "success")                                                                            \
    X(CANCELLED, 1, "cancelled by the caller")                                                     \
    X(INVALID_ARGUMENT, 3, "invalid argument")                                                     \
    X(DEADLINE_EXCEEDED, 4, "deadline exceeded")                                                   \
    X(NOT_FOUND, 5, "not found")                                                                   \
    X(PERMISSION_DENIED, 7, "permission denied")                                                   \
    X(RESOURCE_EXHAUSTED, 8, "resource exhausted")                                                 \
    X(FAILED_PRECONDITION, 9, "failed precondition")                                               \
    X(UNIMPLEMENTED, 12, "unimplemented")                                                          \
    X(INTERNAL, 13, "internal error")                                                              \
    X(UNAVAILABLE, 14, "unavailable")                                                              \
    X(DATA_LOSS, 15, "data loss")                                                                  \
    X(UNAUTHENTICATED, 16, "unauthenticated")

typedef enum skep_status {
#define SKEP_STATUS_ENUM(name, number, text) SKEP_##name = (number),
    SKEP_STATUS_MAP(SKEP_STATUS_ENUM)
#undef SKEP_STATUS_ENUM
} skep_status;

/** Room for one sentence, its terminating NUL included. Longer sentences are cut. */
#define SKEP_ERROR_MESSAGE_BYTES 512

/**
 * What went wrong, for people: the thing, the value seen and what was expected.
 * The caller owns the memory; a function that fails fills it, one that succeeds leaves it alone.
 */
struct skep_error {
    skep_status status;
    /** With SKEP_RESOURCE_EXHAUSTED: try again after so many milliseconds; 0 if unknown. */
    uint32_t retry_after_ms;
    /**
     * Set when a call that changes weights may or may not have been carried out: the peer was
     * lost after the request was sent. Never retried by Skep itself.
     */
    bool outcome_unknown;
    char message[SKEP_ERROR_MESSAGE_BYTES];
};

/**
 * The name of a status, such as "NOT_FOUND"; "UNKNOWN_STATUS" for any other number.
 * Thread: any. The result is a constant string.
 */
SKEP_API const char *skep_status_name(skep_status status);

/** A short constant text for a status, such as "not found". Thread: any. */
SKEP_API const char *skep_status_text(skep_status status);

#ifdef __cplusplus
}
#endif
#endif
