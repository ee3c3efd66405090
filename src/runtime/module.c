/* Replaced by the first real source file. */
typedef int runtime_module_is_empty;
