/*
 * Live views: who answers lookups under a prefix without the network. A watch (watch.h) is one; the
 * directory asks them and knows no more of them.
 */
#ifndef SKEP_DHT_DIRECTORY_LIVE_VIEW_H
#define SKEP_DHT_DIRECTORY_LIVE_VIEW_H

#include <pthread.h>

#include "dht/directory/prefix_view.h"

/* Part of what answers, which keeps it until live_views_remove(). */
struct live_view {
    struct live_view *next; /* in live_views */
    const char *prefix;
    size_t prefix_len;
    /*
     * The view of a prefix under it. Called with the list's lock held.
     * @param view  gets one reference; NULL: nothing is alive there.
     * @return false if it can't tell now.
     */
    bool (*find)(struct live_view *live, const char *prefix, size_t len, struct prefix_view **view);
};

struct live_views {
    pthread_mutex_t lock; /* guards the list */
    struct live_view *first;
};

void live_views_init(struct live_views *views);
void live_views_fini(struct live_views *views); /* nothing is in it */
void live_views_add(struct live_views *views, struct live_view *live);
/* Does nothing if it is not there. No find() runs after. */
void live_views_remove(struct live_views *views, struct live_view *live);

/* As live_view.find of the first one that can tell; false: there is none. */
bool live_views_find(struct live_views *views, const char *prefix, size_t len,
                     struct prefix_view **view);

#endif
