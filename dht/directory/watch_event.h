/* What a watch tells of (watch.h). */
#ifndef SKEP_DHT_DIRECTORY_WATCH_EVENT_H
#define SKEP_DHT_DIRECTORY_WATCH_EVENT_H

#include "dht/directory/provider.h"

enum watch_event_kind {
    WATCH_APPEARED, /* an expert is served, and was not before */
    WATCH_CHANGED,  /* by other nodes or at other endpoints than before */
    WATCH_GONE,     /* nobody serves it any more */
};

struct watch_event {
    enum watch_event_kind kind;
    const char *uid;                  /* view, as below */
    const struct provider *providers; /* who serves it now, freshest first */
    size_t provider_count;            /* 0 with WATCH_GONE */
};
typedef void (*watch_fn)(void *arg, const struct watch_event *event);

#endif
