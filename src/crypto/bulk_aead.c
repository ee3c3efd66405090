#include "crypto/bulk_aead.h"

#include <assert.h>
#include <limits.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sodium.h>

#include "base/alloc.h"

/* A direction either encrypts or decrypts, so one context serves it, set up at its first use. */
struct bulk_aead {
    EVP_CIPHER_CTX *ctx;
};

static pthread_once_t fetched = PTHREAD_ONCE_INIT;
static EVP_CIPHER *aes_gcm, *chacha_poly; /* set once, kept until the process ends */

/* Looking a cipher up takes microseconds and a lock, so each is looked up once. libcrypto must not
 * clean up at exit(): I/O threads of a library user may still be running. */
static void fetch_ciphers(void)
{
    OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL);
    aes_gcm = EVP_CIPHER_fetch(NULL, "AES-256-GCM", NULL);
    chacha_poly = EVP_CIPHER_fetch(NULL, "ChaCha20-Poly1305", NULL);
}

struct bulk_aead *bulk_aead_new(enum noise_cipher cipher, const uint8_t key[static 32])
{
    const EVP_CIPHER *evp;
    struct bulk_aead *aead;

    pthread_once(&fetched, fetch_ciphers);
    evp = cipher == NOISE_AESGCM ? aes_gcm : chacha_poly;
    if (evp == NULL)
        return NULL;
    aead = mem_alloc(sizeof(*aead));
    if (aead == NULL)
        return NULL;
    aead->ctx = EVP_CIPHER_CTX_new();
    /* Each message states its direction again; the key stays. */
    if (aead->ctx == NULL || EVP_EncryptInit_ex2(aead->ctx, evp, key, NULL, NULL) != 1) {
        bulk_aead_free(aead);
        return NULL;
    }
    return aead;
}

void bulk_aead_free(struct bulk_aead *aead)
{
    if (aead == NULL)
        return;
    EVP_CIPHER_CTX_free(aead->ctx); /* wipes the expanded key */
    mem_free(aead);
}

bool bulk_aead_seal(struct bulk_aead *aead, const uint8_t nonce[static BULK_AEAD_NONCE_BYTES],
                    const uint8_t *plain, size_t len, uint8_t *out)
{
    int n = 0, rest = 0;

    assert(len <= INT_MAX);
    return EVP_EncryptInit_ex2(aead->ctx, NULL, NULL, nonce, NULL) == 1 &&
           EVP_EncryptUpdate(aead->ctx, out, &n, plain, (int)len) == 1 && (size_t)n == len &&
           EVP_EncryptFinal_ex(aead->ctx, out + n, &rest) == 1 && rest == 0 &&
           EVP_CIPHER_CTX_ctrl(aead->ctx, EVP_CTRL_AEAD_GET_TAG, NOISE_TAG_BYTES, out + len) == 1;
}

bool bulk_aead_open(struct bulk_aead *aead, const uint8_t nonce[static BULK_AEAD_NONCE_BYTES],
                    const uint8_t *sealed, size_t len, uint8_t *out)
{
    size_t plain_len = len - NOISE_TAG_BYTES;
    uint8_t tag[NOISE_TAG_BYTES];
    int n = 0, rest = 0;
    bool good;

    assert(len >= NOISE_TAG_BYTES && plain_len <= INT_MAX);
    for (size_t i = 0; i < sizeof(tag); i++)
        tag[i] = sealed[plain_len + i];
    good = EVP_DecryptInit_ex2(aead->ctx, NULL, NULL, nonce, NULL) == 1 &&
           EVP_DecryptUpdate(aead->ctx, out, &n, sealed, (int)plain_len) == 1 &&
           (size_t)n == plain_len &&
           EVP_CIPHER_CTX_ctrl(aead->ctx, EVP_CTRL_AEAD_SET_TAG, NOISE_TAG_BYTES, tag) == 1 &&
           EVP_DecryptFinal_ex(aead->ctx, out + n, &rest) == 1 && rest == 0;
    if (!good) /* libcrypto decrypts before it verifies */
        sodium_memzero(out, plain_len);
    return good;
}
