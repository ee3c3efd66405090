/* Replaced by the first real source file. */
typedef int net_module_is_empty;
