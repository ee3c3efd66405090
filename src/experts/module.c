/* Replaced by the first real source file. */
typedef int experts_module_is_empty;
