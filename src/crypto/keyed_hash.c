/* See keyed_hash.h. */
#include "crypto/keyed_hash.h"

#include <pthread.h>
#include <sodium.h>

static uint8_t secret[crypto_shorthash_KEYBYTES];
static pthread_once_t secret_once = PTHREAD_ONCE_INIT;

_Static_assert(crypto_shorthash_BYTES == sizeof(uint64_t), "a hash is one number");

static void make_secret(void)
{
    randombytes_buf(secret, sizeof(secret));
}

uint64_t keyed_hash(const void *data, size_t len)
{
    uint64_t hash;

    pthread_once(&secret_once, make_secret);
    crypto_shorthash((uint8_t *)&hash, data, len, secret);
    return hash;
}
