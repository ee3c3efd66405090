/* Replaced by the first real source file. */
typedef int dht_module_is_empty;
