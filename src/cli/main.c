/* The program `skep`. */
#include "cli/command.h"
#include "dht/runner.h"

int main(int argc, char **argv)
{
    runner_own_process();
    return cli_main(argc, argv);
}
