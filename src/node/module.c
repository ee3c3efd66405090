/* Replaced by the first real source file. */
typedef int node_module_is_empty;
