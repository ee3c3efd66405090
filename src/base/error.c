/* Error sentences and status names. */
#include "base/error.h"
#include "base/number.h"
#undef error_set
#undef error_no_memory

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *skep_status_name(skep_status status)
{
    switch (status) {
#define STATUS_NAME(name, number, text)                                                            \
    case SKEP_##name:                                                                              \
        return #name;
        SKEP_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    }
    return "UNKNOWN_STATUS";
}

const char *skep_status_text(skep_status status)
{
    switch (status) {
#define STATUS_TEXT(name, number, text)                                                            \
    case SKEP_##name:                                                                              \
        return text;
        SKEP_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    }
    return "unknown status";
}

skep_status error_set(struct skep_error *err, skep_status status, const char *format, ...)
{
    va_list args;

    if (err == NULL)
        return status;
    char message[SKEP_ERROR_MESSAGE_BYTES]; /* the arguments may point into err->message */
    va_start(args, format);
    number_vprint(message, sizeof(message), format, args);
    va_end(args);
    *err = (struct skep_error){.status = status};
    memcpy(err->message, message, sizeof(message));
    return status;
}

void error_prefix(struct skep_error *err, const char *format, ...)
{
    char prefix[SKEP_ERROR_MESSAGE_BYTES / 2];
    char message[SKEP_ERROR_MESSAGE_BYTES];
    va_list args;

    if (err == NULL)
        return;
    va_start(args, format);
    number_vprint(prefix, sizeof(prefix), format, args);
    va_end(args);
    memcpy(message, err->message, sizeof(message));
    message[sizeof(message) - 1] = '\0';
    size_t n = strlen(prefix);
    memcpy(err->message, prefix, n);
    snprintf(err->message + n, sizeof(err->message) - n, ": %s", message);
}

skep_status error_no_memory(struct skep_error *err, const char *what, size_t bytes)
{
    return error_set(err, SKEP_RESOURCE_EXHAUSTED, "%s: no memory for %zu bytes", what, bytes);
}

skep_status error_if_null(const void *given, const char *name, struct skep_error *err)
{
    return given != NULL ? SKEP_OK
                         : error_set(err, SKEP_INVALID_ARGUMENT, "%s: NULL is not allowed", name);
}

skep_status error_if_null_in(const void *list, size_t count, const char *name,
                             struct skep_error *err)
{
    if (count == 0)
        return SKEP_OK;
    skep_status rc = error_if_null(list, name, err);
    for (size_t i = 0; rc == SKEP_OK && i < count; i++) {
        const void *entry; /* copied: the list may be of any type of pointers */
        memcpy(&entry, (const char *)list + i * sizeof(entry), sizeof(entry));
        if (entry == NULL)
            rc = error_set(err, SKEP_INVALID_ARGUMENT, "%s[%zu]: NULL is not allowed", name, i);
    }
    return rc;
}

skep_status status_from_errno(int error_number)
{
    switch (error_number) {
    case ENOENT:
    case ENOTDIR:
        return SKEP_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS:
        return SKEP_PERMISSION_DENIED;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
        return SKEP_RESOURCE_EXHAUSTED;
    default:
        return SKEP_INTERNAL;
    }
}
