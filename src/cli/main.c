/* The program `skep`. */
#include <stdio.h>
#include <unistd.h>

#include "cli/command.h"
#include "dht/runner.h"

int main(int argc, char **argv)
{
    runner_own_process();
    int code = cli_main(argc, argv);
#ifdef SKEP_SANITIZED
    return code; /* sanitizers report at the exit */
#else
    /* An expert that has not come back by the end of a stop may still be at work, in kernels that
     * the exit handlers of libraries would take from under it. All else has been ended by now. */
    fflush(NULL);
    _exit(code);
#endif
}
