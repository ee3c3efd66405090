/*
 * A test's own getaddrinfo(), in the place of the C library's: names that lead where no DNS has to,
 * or to nothing (none.test), and names (slow.test, slow-0.test, ...) that stay unanswered until
 * they are released.
 */
#ifndef SKEP_TESTS_MADE_UP_NAMES_H
#define SKEP_TESTS_MADE_UP_NAMES_H

#include "unit.h"

#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"

enum { NAMES_PATIENCE_MS = 60000 };

static pthread_mutex_t names_lock = PTHREAD_MUTEX_INITIALIZER; /* guards all of these */
static pthread_cond_t names_changed;
static bool names_released;
static unsigned names_asked, names_answered; /* slow ones */

static inline void names_set_released(bool released)
{
    pthread_mutex_lock(&names_lock);
    names_released = released;
    pthread_cond_broadcast(&names_changed);
    pthread_mutex_unlock(&names_lock);
}

static inline bool names_reach(const unsigned *count, unsigned least)
{
    uint64_t deadline = clock_deadline_us(NAMES_PATIENCE_MS);

    pthread_mutex_lock(&names_lock);
    while (*count < least && cond_wait_until(&names_changed, &names_lock, deadline))
        ;
    bool reached = *count >= least;
    pthread_mutex_unlock(&names_lock);
    return reached;
}

static inline unsigned names_count(const unsigned *count)
{
    pthread_mutex_lock(&names_lock);
    unsigned n = *count;
    pthread_mutex_unlock(&names_lock);
    return n;
}

/* Around each test that looks up slow names: nothing is left behind that the next would count. */
static inline int names_setup(void **state)
{
    static bool initialized;

    (void)state;
    if (!initialized)
        cond_init(&names_changed);
    initialized = true;
    names_asked = names_answered = 0;
    names_set_released(false);
    return 0;
}

static inline int names_teardown(void **state)
{
    (void)state;
    names_set_released(true);
    return names_reach(&names_answered, names_count(&names_asked)) ? 0 : -1;
}

#define NAMES_TEST(name) cmocka_unit_test_setup_teardown(name, names_setup, names_teardown)

static inline void names_wait(void)
{
    pthread_mutex_lock(&names_lock);
    names_asked++;
    pthread_cond_broadcast(&names_changed);
    while (!names_released)
        pthread_cond_wait(&names_changed, &names_lock);
    names_answered++;
    pthread_cond_broadcast(&names_changed);
    pthread_mutex_unlock(&names_lock);
}

/* Where a made-up name leads; NULL: it is none. */
static inline const char *names_find(const char *name)
{
    static const char *const table[][2] = {
        {"loopback.test", "127.0.0.1"},
        {"other.test", "127.8.9.1"},
        {"any.test", "0.0.0.0"},
        {"six.test", "::1"},
        {"mapped.test", "::ffff:127.0.0.1"},
    };

    if (strncmp(name, "slow", 4) == 0)
        return "127.0.0.1";
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(name, table[i][0]) == 0)
            return table[i][1];
    return NULL;
}

__attribute__((visibility("default"))) int getaddrinfo(const char *node, const char *service,
                                                       const struct addrinfo *hints,
                                                       struct addrinfo **out)
{
    union {
        void *symbol;
        int (*function)(const char *node, const char *service, const struct addrinfo *hints,
                        struct addrinfo **out);
    } real = {.symbol = dlsym(RTLD_NEXT, "getaddrinfo")};
    const char *address = node != NULL ? names_find(node) : NULL;

    if (node != NULL && strcmp(node, "none.test") == 0)
        return EAI_NONAME;
    if (address == NULL)
        return real.function(node, service, hints, out);
    if (hints != NULL && (hints->ai_flags & AI_NUMERICHOST) != 0)
        return EAI_NONAME;
    if (strncmp(node, "slow", 4) == 0)
        names_wait();
    return real.function(address, service, hints, out);
}

#endif
