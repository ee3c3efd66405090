/* See skep/version.h. */
#include <skep/version.h>

unsigned skep_abi(void)
{
    return SKEP_ABI;
}

const char *skep_version(void)
{
    return SKEP_VERSION;
}
