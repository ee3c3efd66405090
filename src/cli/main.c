/* The program `skep`. */
#include "cli/command.h"
#include "dht/opendht/runner.h"

int main(int argc, char **argv)
{
    cli_fill_standard_descriptors();
    runner_own_process();
    return cli_exit(cli_main(argc, argv));
}
