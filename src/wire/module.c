/* Replaced by the first real source file. */
typedef int wire_module_is_empty;
