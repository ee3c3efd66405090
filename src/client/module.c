/* Replaced by the first real source file. */
typedef int client_module_is_empty;
