/* See live_view.h. */
#include "dht/directory/live_view.h"

#include <string.h>

void live_views_init(struct live_views *views)
{
    pthread_mutex_init(&views->lock, NULL);
    views->first = NULL;
}

void live_views_fini(struct live_views *views)
{
    pthread_mutex_destroy(&views->lock);
}

void live_views_add(struct live_views *views, struct live_view *live)
{
    pthread_mutex_lock(&views->lock);
    live->next = views->first;
    views->first = live;
    pthread_mutex_unlock(&views->lock);
}

void live_views_remove(struct live_views *views, struct live_view *live)
{
    pthread_mutex_lock(&views->lock);
    for (struct live_view **link = &views->first; *link != NULL; link = &(*link)->next)
        if (*link == live) {
            *link = live->next;
            break;
        }
    pthread_mutex_unlock(&views->lock);
}

bool live_views_find(struct live_views *views, const char *prefix, size_t len,
                     struct prefix_view **view)
{
    bool covered = false;

    *view = NULL;
    pthread_mutex_lock(&views->lock);
    for (struct live_view *live = views->first; live != NULL && !covered; live = live->next)
        covered = len >= live->prefix_len && memcmp(prefix, live->prefix, live->prefix_len) == 0 &&
                  live->find(live, prefix, len, view);
    pthread_mutex_unlock(&views->lock);
    return covered;
}
