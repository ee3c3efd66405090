/* The program `skep`. */
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/command.h"
#include "dht/runner.h"

/* A descriptor from 0 to 2 that is closed would be given to a socket or a file, and what is printed
 * would go there. Writing to these fails, as it would with a closed one. */
static void fill_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            (void)!open("/dev/null", O_RDONLY); /* takes the lowest that is free */
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
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
