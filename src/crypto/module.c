/* Replaced by the first real source file. */
typedef int crypto_module_is_empty;
