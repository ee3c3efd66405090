#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <skep/log.h>
#include "base/alloc.h"
#include "base/error.h"
#include "cli/environment.h"
#include "cli/options.h"
#include "cli/options_internal.h"
#include "cli/output.h"
#include "tempdir.h"

static skep_status check_even(const char *text, struct skep_error *err)
{
    if (strlen(text) % 2 == 0)
        return SKEP_OK;
    return error_set(err, SKEP_INVALID_ARGUMENT, "\"%s\" has an odd length", text);
}

static const struct option_spec specs[] = {
    {.name = "swarm", .kind = OPTION_STRING, .default_text = "skep", .help = "name"},
    {.name = "listen",
     .kind = OPTION_ENDPOINT,
     .any_port = true,
     .default_text = "0.0.0.0:*",
     .help = "where to serve requests"},
    {.name = "announce", .kind = OPTION_ENDPOINT, .help = "endpoint to announce"},
    {.name = "max-batch-size",
     .kind = OPTION_INT,
     .min = 1,
     .max = 65536,
     .unit = "rows",
     .default_text = "4096",
     .help = "most rows of one batch"},
    {.name = "timeout", .kind = OPTION_INT, .min = 1, .max = 86400, .unit = "s", .help = "limit"},
    {.name = "wait", .kind = OPTION_INT, .min = 1, .max = 3600000, .unit = "ms", .help = "limit"},
    {.name = "cache",
     .kind = OPTION_INT,
     .max = INT64_MAX,
     .unit = "bytes",
     .default_text = "64M",
     .help = "size"},
    {.name = "update-period",
     .kind = OPTION_FLOAT,
     .number_min = 0.5,
     .number_max = 3600,
     .unit = "s",
     .default_text = "30",
     .help = "time between two publications, which is explained in a sentence long enough that it "
             "has to be broken into several lines of help"},
    {.name = "optimizer",
     .kind = OPTION_CHOICE,
     .choices = "adam|sgd|none",
     .default_text = "adam",
     .help = "rule"},
    {.name = "no-dht", .kind = OPTION_FLAG, .help = "stay alone"},
    {.name = "initial-peers",
     .kind = OPTION_LIST,
     .placeholder = "HOST:PORT,...",
     .check = options_check_endpoint,
     .help = "peers to join"},
    {.name = "even", .kind = OPTION_LIST, .check = check_even, .help = "texts"},
};

static const struct option_table table = {
    .command = "node",
    .summary = "Runs a node.",
    .example = "skep node --listen [::]:31330\nskep node --no-dht",
    .specs = specs,
    .count = OPTION_COUNT(specs),
    .positional = "UID...",
    .positional_min = 0,
    .positional_max = 2,
};

/* Parses up to 16 arguments behind the command's name. */
static skep_status parse(struct options *o, const char *const *arguments, struct skep_error *err)
{
    static char name[] = "node";
    char *argv[18] = {name};
    int argc = 1;

    for (; argc < 17 && arguments[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)arguments[argc - 1];
    return options_parse(o, &table, argc, argv, err);
}
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})
#define NO_ARGS ((const char *const[]){NULL})

static struct options parse_good(const char *const *arguments)
{
    struct options o;
    struct skep_error err;

    if (parse(&o, arguments, &err) != SKEP_OK)
        fail_msg("%s", err.message);
    return o;
}

static void refused(const char *const *arguments, const char *part)
{
    struct options o;
    struct skep_error err = {0};

    assert_int_equal(parse(&o, arguments, &err), SKEP_INVALID_ARGUMENT);
    if (strstr(err.message, part) == NULL)
        fail_msg("%s; expected %s", err.message, part);
    options_free(&o);
}

static void defaults_hold_without_anything_given(void **state)
{
    (void)state;
    struct options o = parse_good(NO_ARGS);
    size_t count;

    assert_string_equal(options_string(&o, "swarm"), "skep");
    assert_string_equal(options_endpoint(&o, "listen")->host, "0.0.0.0");
    assert_int_equal(options_endpoint(&o, "listen")->port, 0);
    assert_null(options_endpoint(&o, "announce"));
    assert_int_equal(options_int(&o, "max-batch-size"), 4096);
    assert_int_equal(options_int(&o, "timeout"), 0);
    assert_true(options_int(&o, "cache") == 64 << 20);
    assert_true(options_float(&o, "update-period") > 29.9);
    assert_string_equal(options_string(&o, "optimizer"), "adam");
    assert_string_equal(options_string(&o, "log-level"), "warning");
    assert_false(options_flag(&o, "no-dht"));
    options_list(&o, "initial-peers", &count);
    assert_int_equal(count, 0);
    assert_int_equal(o.positional_count, 0);
    assert_false(options_given(&o, "swarm"));
    options_free(&o);
    options_free(&o);
    options_free(NULL);
}

static void both_spellings_on_the_command_line_are_read(void **state)
{
    (void)state;
    struct options o = parse_good(
        ARGS("--swarm=a=b", "first", "--max-batch-size", "7", "--no-dht", "--", "--second"));

    assert_string_equal(options_string(&o, "swarm"), "a=b");
    assert_int_equal(options_int(&o, "max-batch-size"), 7);
    assert_true(options_flag(&o, "no-dht"));
    assert_true(options_given(&o, "swarm"));
    assert_int_equal(o.positional_count, 2);
    assert_string_equal(o.positional[0], "first");
    assert_string_equal(o.positional[1], "--second");
    options_free(&o);
}

static void last_scalar_of_the_command_line_counts(void **state)
{
    (void)state;
    struct options o = parse_good(ARGS("--swarm", "a", "--swarm", "b", "--no-dht=false"));

    assert_string_equal(options_string(&o, "swarm"), "b");
    assert_false(options_flag(&o, "no-dht"));
    options_free(&o);
}

static void lists_are_repeated_and_separated_by_commas(void **state)
{
    (void)state;
    struct options o = parse_good(ARGS("--initial-peers", "a:1, b:2", "--initial-peers=c:3"));
    size_t count;
    const char *const *peers = options_list(&o, "initial-peers", &count);

    assert_int_equal(count, 3);
    assert_string_equal(peers[0], "a:1");
    assert_string_equal(peers[1], "b:2");
    assert_string_equal(peers[2], "c:3");
    assert_null(peers[3]);
    options_free(&o);
    refused(ARGS("--initial-peers", "a:1,"), "empty element");
    refused(ARGS("--initial-peers", ",a:1"), "empty element");
    refused(ARGS("--initial-peers", ""), "--initial-peers: \"\" has an empty element");
    refused(ARGS("--initial-peers", "1.2.3.4:4222,5.6.7.8"),
            "--initial-peers: endpoint \"5.6.7.8\": no port");
    refused(ARGS("--even", "ab,abc"), "--even: \"abc\" has an odd length");
}

static void units_scale_numbers(void **state)
{
    (void)state;
    struct options o = parse_good(ARGS("--timeout", "2m", "--cache", "3K"));

    assert_int_equal(options_int(&o, "timeout"), 120);
    assert_int_equal(options_int(&o, "cache"), 3072);
    options_free(&o);
    static const struct {
        const char *option, *text;
        double value;
    } good[] = {
        {"--timeout", "1.5m", 90},
        {"--timeout", "24h", 86400},
        {"--timeout", "2000ms", 2},
        {"--timeout", "0.5h", 1800},
        {"--wait", "1h", 3600000},
        {"--wait", "1.5s", 1500},
        {"--wait", "0.001s", 1},
        {"--timeout", "7", 7}, /* a number alone is in seconds, whatever the option counts in */
        {"--wait", "7", 7000},
        {"--wait", "0.25", 250},
        {"--wait", "7ms", 7},
        {"--cache", "1.5GiB", 1.5 * (1 << 30)},
        {"--cache", "2kib", 2048},
        {"--cache", "1g", 1 << 30},
        {"--cache", "0.5M", 1 << 19},
        {"--cache", "0", 0},
        {"--update-period", "1.5s", 1.5},
        {"--update-period", "500ms", 0.5},
        {"--update-period", "1h", 3600},
    };

    for (size_t i = 0; i < OPTION_COUNT(good); i++) {
        o = parse_good(ARGS(good[i].option, good[i].text));
        double value = strcmp(good[i].option, "--update-period") == 0
                           ? options_float(&o, "update-period")
                           : (double)options_int(&o, good[i].option + 2);
        if (value < good[i].value - 1e-9 || value > good[i].value + 1e-9)
            fail_msg("%s %s: %g, expected %g", good[i].option, good[i].text, value, good[i].value);
        options_free(&o);
    }
    refused(ARGS("--timeout", "1500ms"), "--timeout: \"1500ms\", expected a time from 1s to 24h in "
                                         "whole seconds, such as 90s, 2m or "
                                         "1h; a number alone is in seconds");
    refused(ARGS("--timeout", "1.5"), "expected a time from 1s to 24h");
    refused(ARGS("--timeout", "1."), "expected a time from 1s to 24h");
    refused(ARGS("--timeout", "1.s"), "expected a time from 1s to 24h");
    refused(ARGS("--timeout", "-0.5m"), "expected a time from 1s to 24h");
    refused(ARGS("--timeout", "1.00000000000000000001m"), "expected a time from 1s to 24h");
    refused(ARGS("--wait", "1.1h1"), "expected a time from 1ms to 1h");
    refused(ARGS("--wait", "1.000001h"), "expected a time from 1ms to 1h");
    refused(ARGS("--wait", "3600001ms"), "from 1ms to 1h in whole milliseconds, such as 500ms");
    refused(ARGS("--wait", "3601"), "--wait: \"3601\", expected a time from 1ms to 1h");
    refused(ARGS("--wait", "9223372036854775807"), "expected a time");
    refused(ARGS("--cache", "1KB"), "or with K, M or G (or KiB, MiB, GiB) behind it");
    refused(ARGS("--cache", "9223372036854775807.5G"), "expected a whole number");
    refused(ARGS("--cache", "8589934591.999999999G"), "expected a whole number");
    refused(ARGS("--update-period", "2h"),
            "from 500ms to 1h, such as 500ms, 1.5s, 2m or 1h; a number alone");
    refused(ARGS("--timeout", "2000h"), "--timeout: \"2000h\", expected a time from 1s");
    refused(ARGS("--timeout", "2M"), "expected a time from 1s to 24h");
    refused(ARGS("--max-batch-size", "2K"), "expected a whole number");
    refused(ARGS("--cache", "9999999999G"), "expected a whole number");
}

static void wrong_values_name_option_value_and_expectation(void **state)
{
    (void)state;
    static const struct {
        const char *arguments[3];
        const char *part;
    } rows[] = {
        {{"--max-batch-size", "x"},
         "--max-batch-size: \"x\", expected a whole number from 1 to "
         "65536 rows"},
        {{"--max-batch-size", "0"}, "\"0\", expected"},
        {{"--max-batch-size", "65537"}, "\"65537\", expected"},
        {{"--max-batch-size", "99999999999999999999"}, "expected a whole number"},
        {{"--max-batch-size", "-1"}, "\"-1\", expected"},
        {{"--max-batch-size", "+1"}, "expected a whole number"},
        {{"--max-batch-size", " 1"}, "expected a whole number"},
        {{"--max-batch-size", "1.5"}, "expected a whole number"},
        {{"--max-batch-size="}, "\"\", expected a whole number"},
        {{"--max-batch-size"}, "--max-batch-size: no value, expected a whole number"},
        {{"--max-batch-size", "--no-dht"}, "--max-batch-size: no value"},
        {{"--update-period", "0.4"}, "--update-period: \"0.4\", expected a time from 500ms to 1h"},
        {{"--update-period", "nan"}, "expected a time"},
        {{"--update-period", "inf"}, "expected a time"},
        {{"--update-period", "0x10"}, "expected a time"},
        {{"--update-period", "1e"}, "expected a time"},
        {{"--listen", "host"}, "--listen: endpoint \"host\": no port"},
        {{"--listen", "host:99999"}, "out of range"},
        {{"--announce", "host:*"}, "--announce: endpoint \"host:*\""},
        {{"--optimizer", "ada"}, "--optimizer: \"ada\", expected one of adam|sgd|none"},
        {{"--optimizer", "adam|sgd"}, "expected one of"},
        {{"--no-dht=maybe"}, "--no-dht: \"maybe\", expected true or false"},
        {{"--swarm", ""}, "--swarm: \"\", expected a text"},
        {{"--log-level", "loud"}, "--log-level: \"loud\", expected one of error"},
        {{"-x"}, "-x: unknown option"},
        {{"a", "b", "c"}, "\"c\": unexpected argument, expected UID..."},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *arguments[4] = {rows[i].arguments[0], rows[i].arguments[1],
                                    rows[i].arguments[2], NULL};
        refused(arguments, rows[i].part);
    }
}

static void unknown_option_suggests_the_nearest(void **state)
{
    (void)state;
    refused(ARGS("--initial-peer", "a:1"),
            "--initial-peer: unknown option, did you mean --initial-peers?");
    refused(ARGS("--lisen=a:1"), "--lisen: unknown option, did you mean --listen?");
    refused(ARGS("--hepl"), "did you mean --help?");
    refused(ARGS("--max"), "did you mean --max-batch-size?");
    refused(ARGS("--dht-listen", "a:1"), "--dht-listen: unknown option, did you mean --listen?");
    refused(ARGS("--peers", "a:1"), "--peers: unknown option, did you mean --initial-peers?");
    struct options o;
    struct skep_error err;
    assert_int_equal(parse(&o, ARGS("--zzzzzzzz"), &err), SKEP_INVALID_ARGUMENT);
    assert_null(strstr(err.message, "did you mean"));
    assert_null(options_nearest("abc", (const char *const[]){"wxyz"}, 1));
}

static struct tempdir dir;

/* Writes a configuration file and returns its path. */
static const char *write_config(const char *text)
{
    static char path[512];
    FILE *f = fopen(tempdir_file(&dir, "node.conf", path), "w");

    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
    return path;
}

static void command_line_wins_over_environment_over_file(void **state)
{
    (void)state;
    const char *path = write_config("swarm = file\nmax-batch-size = 1\ntimeout = 1\n"
                                    "initial-peers = f:1\n");

    setenv("SKEP_MAX_BATCH_SIZE", "2", 1);
    setenv("SKEP_TIMEOUT", "2", 1);
    setenv("SKEP_INITIAL_PEERS", "e:1,e:2", 1);
    setenv("SKEP_OPTIMIZER", "", 1); /* as good as unset */
    setenv("SKEP_CONFIG", path, 1);
    struct options o = parse_good(ARGS("--timeout", "3"));
    size_t count;
    assert_string_equal(options_string(&o, "swarm"), "file");
    assert_int_equal(options_int(&o, "max-batch-size"), 2);
    assert_int_equal(options_int(&o, "timeout"), 3);
    assert_string_equal(options_string(&o, "optimizer"), "adam");
    assert_string_equal(options_list(&o, "initial-peers", &count)[0], "e:1");
    assert_int_equal(count, 2); /* lists of different sources do not mix */
    options_free(&o);
    setenv("SKEP_MAX_BATCH_SIZE", "many", 1);
    refused(NO_ARGS, "SKEP_MAX_BATCH_SIZE: \"many\", expected a whole number");
    unsetenv("SKEP_MAX_BATCH_SIZE");
    unsetenv("SKEP_TIMEOUT");
    unsetenv("SKEP_INITIAL_PEERS");
    unsetenv("SKEP_OPTIMIZER");
    unsetenv("SKEP_CONFIG");
}

static void file_has_comments_continued_lists_and_flags(void **state)
{
    (void)state;
    const char *path = write_config("# a comment\n"
                                    "; another\n"
                                    "\n"
                                    "swarm = my swarm   ; behind a value\r\n"
                                    "no-dht: yes\n"
                                    "initial-peers = a:1\n"
                                    "   b:2, c:3 ; behind a continued one\n"
                                    "listen = [::1]:80");
    struct options o = parse_good(ARGS("--config", path));
    size_t count;
    const char *const *peers = options_list(&o, "initial-peers", &count);
    assert_string_equal(options_string(&o, "swarm"), "my swarm");
    assert_true(options_flag(&o, "no-dht"));
    assert_int_equal(count, 3);
    assert_string_equal(peers[2], "c:3");
    assert_string_equal(options_endpoint(&o, "listen")->host, "::1");
    options_free(&o);
}

static void list_may_have_commas_before_continued_lines(void **state)
{
    (void)state;
    const char *path = write_config("initial-peers = a:1, ; the first\r\n"
                                    "    # between them\n"
                                    "\n"
                                    "\tb:2,c:3,\n"
                                    "   d:4\n"
                                    "swarm = s\n");
    struct options o = parse_good(ARGS("--config", path));
    size_t count;
    const char *const *peers = options_list(&o, "initial-peers", &count);

    assert_int_equal(count, 4);
    assert_string_equal(peers[0], "a:1");
    assert_string_equal(peers[2], "c:3");
    assert_string_equal(peers[3], "d:4");
    options_free(&o);
}

static void values_of_file_and_environment_lose_their_quotes(void **state)
{
    (void)state;
    const char *path = write_config("swarm = \"my ; swarm # 1\" # behind a value\n"
                                    "max-batch-size = 7 # rows\n"
                                    "even = 'ab', \"c d#\" ; two\n"
                                    "   \"e;ff\",gh #three\n");
    struct options o = parse_good(ARGS("--config", path));
    size_t count;
    const char *const *even = options_list(&o, "even", &count);

    assert_string_equal(options_string(&o, "swarm"), "my ; swarm # 1");
    assert_int_equal(options_int(&o, "max-batch-size"), 7);
    assert_int_equal(count, 4);
    assert_string_equal(even[0], "ab");
    assert_string_equal(even[1], "c d#");
    assert_string_equal(even[3], "gh");
    options_free(&o);
    o = parse_good(ARGS("--config", write_config("swarm = Bob's # x\neven = a#\n")));
    assert_string_equal(options_string(&o, "swarm"), "Bob's");
    assert_string_equal(options_list(&o, "even", &count)[0], "a#");
    options_free(&o);
    setenv("SKEP_SWARM", "'x'", 1);
    setenv("SKEP_INITIAL_PEERS", "\"a:1,b:2\"", 1);
    o = parse_good(NO_ARGS);
    assert_string_equal(options_string(&o, "swarm"), "x");
    assert_string_equal(options_list(&o, "initial-peers", &count)[1], "b:2");
    options_free(&o);
    /* On a command line the shell has done it. */
    o = parse_good(ARGS("--swarm", "\"x\""));
    assert_string_equal(options_string(&o, "swarm"), "\"x\"");
    options_free(&o);
    setenv("SKEP_SWARM", "\"x", 1);
    refused(NO_ARGS, "SKEP_SWARM: \"\\x22x\" begins with a quote that nothing closes");
    unsetenv("SKEP_SWARM");
    unsetenv("SKEP_INITIAL_PEERS");
}

static void variables_of_a_kubernetes_service_are_ignored(void **state)
{
    (void)state;
    static const char *const names[] = {
        "SKEP_SERVICE_HOST",       "SKEP_SERVICE_PORT",        "SKEP_SERVICE_PORT_TRACKER",
        "SKEP_PORT_9190_TCP",      "SKEP_PORT_9190_TCP_PROTO", "SKEP_PORT_9190_TCP_PORT",
        "SKEP_PORT_9190_TCP_ADDR", "SKEP_PORT_4222_UDP_ADDR",  "SKEP_TRACKER_SERVICE_HOST",
    };
    static const char *const options[] = {"SKEP_PORT",       "SKEP_PORT_END",
                                          "SKEP_HOST",       "SKEP_REPORT_PORT_TCP",
                                          "SKEP_PORT_X_TCP", "SKEP_ANNOUNCE"};

    for (size_t i = 0; i < OPTION_COUNT(names); i++)
        if (!environment_is_service_link(names[i], "10.0.0.1"))
            fail_msg("%s", names[i]);
    for (size_t i = 0; i < OPTION_COUNT(options); i++)
        if (environment_is_service_link(options[i], "9190"))
            fail_msg("%s", options[i]);
    assert_true(environment_is_service_link("SKEP_PORT", "tcp://10.0.0.1:9190"));
    assert_true(environment_is_service_link("SKEP_DHT_PORT", "udp://10.0.0.1:4222"));
    /* The value of an option that has the name of such a variable. */
    setenv("SKEP_TIMEOUT", "tcp://10.0.0.1:1", 1);
    refused(NO_ARGS, "SKEP_TIMEOUT: ");
    unsetenv("SKEP_TIMEOUT");
}

static void version_is_asked_for_like_help(void **state)
{
    (void)state;
    static const char *const forms[] = {"-v", "-V", "--version"};

    for (size_t i = 0; i < OPTION_COUNT(forms); i++) {
        struct options o = parse_good(ARGS("a", "b", "c", forms[i])); /* nothing else is checked */
        assert_true(o.version);
        assert_false(o.help);
        options_free(&o);
    }
    setenv("SKEP_VERSION", "3", 1); /* images have it for themselves */
    struct options o = parse_good(NO_ARGS);
    assert_false(o.version);
    options_free(&o);
    unsetenv("SKEP_VERSION");
}

static void mistakes_in_the_file_are_named_by_line(void **state)
{
    (void)state;
    char long_line[400];
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"swarm = a\nswram = b\n", "node.conf:2: \"swram\": unknown option of skep node, did you "
                                   "mean swarm?"},
        {"\n\nmax-batch-size = x\n", "node.conf:3: max-batch-size: \"x\", expected"},
        {"swarm = a\nswarm = b\n", "node.conf:2: \"swarm\": is there twice"},
        {"[node]\nswarm = a\n", "node.conf:2: in a section"},
        {"swarm\n", "node.conf:1: not understood"},
        {"[node\n", "node.conf:1: not understood"},
        {"config = other\n", "node.conf:1: \"config\": cannot be set in a file"},
        {"help = true\n", "node.conf:1: \"help\": cannot be set in a file"},
        {"version = true\n", "node.conf:1: \"version\": cannot be set in a file"},
        {"swarm = #1\n", "node.conf:1: swarm: \"\""},
        {"\nswarm = \"a # b\n", "node.conf:2: swarm: \"\\x22a\" begins with a quote that nothing"},
        {"swarm = a\"\n", "node.conf:1: swarm: \"a\\x22\" ends with a quote that nothing opens"},
        {"swarm = 'a' b\n", "node.conf:1: swarm: \"'a' b\" goes on behind its closing quote"},
        {"even = ab,\n  'cd\n", "node.conf:2: even: \"'cd\" begins with a quote"},
        {"swarm =\n", "node.conf:1: swarm: \"\""},
        {"initial-peers = a:1,,b:2\n", "node.conf:1: initial-peers: "},
        {"initial-peers = a:1,\n", "node.conf:1: initial-peers: "},
        {"initial-peers = a:1,\n  b:2,\nswarm = s\n", "node.conf:2: initial-peers: "},
        {"initial-peers = a:1,\n  ,b:2\n", "node.conf:2: initial-peers: "},
        {"initial-peers = a:1,,\n  b:2\n", "node.conf:1: initial-peers: "},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        refused(ARGS("--config", write_config(rows[i].text)), rows[i].part);
    memset(long_line, 'x', sizeof(long_line));
    memcpy(long_line, "swarm = ", 8);
    long_line[sizeof(long_line) - 1] = '\0';
    refused(ARGS("--config", write_config(long_line)), "node.conf:1: 399 characters in a line");
}

/* Otherwise they would come to light on the day when the option is left out. */
static void mistakes_in_the_file_are_named_though_the_command_line_wins(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"swarm = a\nswram = b\n", "node.conf:2: \"swram\": unknown option of skep node"},
        {"max-batch-size = many\n",
         "node.conf:1: max-batch-size: \"many\", expected a whole number from 1 to 65536 rows"},
        {"\nmax-batch-size = 65537\n", "node.conf:2: max-batch-size: \"65537\", expected"},
        {"listen = host\n", "node.conf:1: listen: endpoint \"host\": no port"},
        {"optimizer = ada\n", "node.conf:1: optimizer: \"ada\", expected one of adam|sgd|none"},
        {"no-dht = maybe\n", "node.conf:1: no-dht: \"maybe\", expected true or false"},
        {"initial-peers = a:1\n  b\n", "node.conf:2: initial-peers: endpoint \"b\": no port"},
        {"swarm =\n", "node.conf:1: swarm: \"\""},
        {"swarm = a\nswarm = b\n", "node.conf:2: \"swarm\": is there twice"},
    };
    const char *const *all =
        ARGS("--swarm", "s", "--max-batch-size", "8", "--listen", "[::]:1", "--optimizer", "sgd",
             "--no-dht", "--initial-peers", "c:1", "--config", NULL);

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *arguments[16] = {NULL};
        size_t n = 0;
        for (; all[n] != NULL; n++)
            arguments[n] = all[n];
        arguments[n] = write_config(rows[i].text);
        refused(arguments, rows[i].part);
    }
    const char *good = write_config("swarm = a\ninitial-peers = a:1\n  b:2\nno-dht = no\n");
    struct options o =
        parse_good(ARGS("--swarm", "s", "--initial-peers", "c:1", "--no-dht", "--config", good));
    size_t count;
    assert_string_equal(options_string(&o, "swarm"), "s");
    assert_string_equal(options_list(&o, "initial-peers", &count)[0], "c:1");
    assert_int_equal(count, 1);
    assert_true(options_flag(&o, "no-dht"));
    options_free(&o);
}

static void unreadable_file_is_named(void **state)
{
    (void)state;
    struct options o;
    struct skep_error err;
    char path[512];

    tempdir_file(&dir, "absent", path);
    assert_int_equal(parse(&o, ARGS("--config", path), &err), SKEP_NOT_FOUND);
    assert_non_null(strstr(err.message, path));
    assert_int_equal(parse(&o, ARGS("--config", dir.path), &err), SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, dir.path));
    refused(ARGS("--config", "/dev/zero"), "/dev/zero");
}

static void required_options_and_arguments_are_asked_for(void **state)
{
    (void)state;
    static const struct option_spec needed[] = {
        {.name = "output",
         .kind = OPTION_STRING,
         .placeholder = "PATH",
         .required = true,
         .help = "where"},
    };
    static const struct option_table small = {
        .command = "call",
        .summary = "Calls.",
        .specs = needed,
        .count = OPTION_COUNT(needed),
        .positional = "UID",
        .positional_min = 1,
        .positional_max = 1,
    };
    char name[] = "call", uid[] = "ffn.1", output[] = "--output=x";
    struct options o;
    struct skep_error err;

    assert_int_equal(options_parse(&o, &small, 2, (char *[]){name, uid, NULL}, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "--output: missing, expected PATH"));
    assert_int_equal(options_parse(&o, &small, 2, (char *[]){name, output, NULL}, &err),
                     SKEP_INVALID_ARGUMENT);
    assert_non_null(strstr(err.message, "no argument, expected UID"));
    assert_int_equal(options_parse(&o, &small, 3, (char *[]){name, uid, output, NULL}, &err),
                     SKEP_OK);
    options_free(&o);
}

/* All of a stream's text, closed. Owned: free(). */
static char *help_text(void)
{
    char *text = NULL;
    size_t len = 0;
    FILE *f = open_memstream(&text, &len);

    assert_non_null(f);
    options_print_help(&table, f);
    fclose(f);
    return text;
}

static void help_shows_usage_examples_and_defaults(void **state)
{
    (void)state;
    char *text = help_text();

    assert_int_equal(strncmp(text, "Usage: skep node ", 17), 0);
    assert_non_null(strstr(text, ":\n  skep node --listen [::]:31330\n"));
    assert_non_null(strstr(text, "  --listen HOST:PORT"));
    assert_non_null(strstr(text, "(default: 0.0.0.0:*)"));
    assert_non_null(strstr(text, "(default: 4096; 1 to 65536 rows)"));
    assert_non_null(strstr(text, "  --timeout TIME "));
    assert_non_null(strstr(text, "  --cache BYTES "));
    assert_non_null(strstr(text, "  --max-batch-size N "));
    assert_non_null(strstr(text, "limit (1s to 24h)"));
    assert_non_null(strstr(text, "limit (1ms to 1h)"));
    assert_non_null(strstr(text, "(default: 30; 500ms to 1h)"));
    assert_non_null(strstr(text, "A number alone is in seconds."));
    assert_non_null(strstr(text, "  --optimizer adam|sgd|none"));
    assert_non_null(strstr(text, "  --config PATH"));
    assert_non_null(strstr(text, "(default: warning)"));
    for (const char *line = text; *line != '\0'; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 92)
            fail_msg("too long: %.*s", (int)strcspn(line, "\n"), line);
    free(text);
    struct options o = parse_good(ARGS("--help", "a", "b", "c"));
    assert_true(o.help);
    options_free(&o);
}

static void begin_answers_help_and_bad_usage(void **state)
{
    (void)state;
    struct options o;
    int code = -1;
    char name[] = "node", bad[] = "--nonsense", level[] = "--log-level=error";
    int saved = dup(STDERR_FILENO);
    int null = open("/dev/null", O_WRONLY);

    dup2(null, STDERR_FILENO);
    bool went_on = options_begin(&o, &table, 2, (char *[]){name, bad, NULL}, &code);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(null);
    assert_false(went_on);
    assert_int_equal(code, CLI_USAGE);
    assert_true(options_begin(&o, &table, 2, (char *[]){name, level, NULL}, &code));
    options_free(&o);
}

static void every_failed_allocation_is_reported(void **state)
{
    (void)state;
    const char *path = write_config("swarm = a\neven = ab,cd\n");
    long n = 1;

    for (;; n++) {
        struct options o;
        mem_fail_at(n);
        skep_status rc = parse(&o, ARGS("--config", path, "--initial-peers", "a:1,b:2"), NULL);
        bool pending = mem_fail_pending();
        mem_fail_at(0);
        options_free(&o);
        if (pending) {
            assert_int_equal(rc, SKEP_OK);
            break;
        }
        assert_int_equal(rc, SKEP_RESOURCE_EXHAUSTED);
    }
    assert_true(n > 10);
}

static void option_of_the_lower_rank_gives_way(void **state)
{
    (void)state;
    static const char why[] = "not with --no-dht";
    size_t count;
    struct options o;

    setenv("SKEP_NO_DHT", "yes", 1);
    o = parse_good(ARGS("--initial-peers", "a:1"));
    assert_int_equal(options_contrary(&o, "initial-peers", "no-dht", why), CLI_DONE);
    assert_false(options_flag(&o, "no-dht"));
    options_list(&o, "initial-peers", &count);
    assert_int_equal(count, 1);
    options_free(&o);
    /* Both in one place that others share: the one that does nothing goes. */
    setenv("SKEP_INITIAL_PEERS", "a:1", 1);
    o = parse_good(NO_ARGS);
    assert_int_equal(options_outrank(&o, "initial-peers", "no-dht"), CLI_DONE);
    assert_true(options_in_force(&o, "initial-peers") && options_in_force(&o, "no-dht"));
    assert_int_equal(options_contrary(&o, "initial-peers", "no-dht", why), CLI_DONE);
    assert_true(options_flag(&o, "no-dht"));
    assert_false(options_given(&o, "initial-peers"));
    options_free(&o);
    unsetenv("SKEP_NO_DHT");
    o = parse_good(ARGS("--no-dht"));
    assert_int_equal(options_contrary(&o, "initial-peers", "no-dht", why), CLI_DONE);
    options_list(&o, "initial-peers", &count);
    assert_int_equal(count, 0);
    assert_true(options_flag(&o, "no-dht"));
    options_free(&o);
    unsetenv("SKEP_INITIAL_PEERS");
    o = parse_good(ARGS("--config", write_config("no-dht = yes\n"), "--initial-peers", "a:1"));
    assert_int_equal(options_contrary(&o, "initial-peers", "no-dht", why), CLI_DONE);
    assert_false(options_flag(&o, "no-dht"));
    options_free(&o);
    o = parse_good(ARGS("--no-dht", "--initial-peers", "a:1"));
    assert_int_equal(options_contrary(&o, "initial-peers", "no-dht", why), CLI_USAGE);
    options_free(&o);
    /* A flag that says false contradicts nothing. */
    o = parse_good(ARGS("--no-dht=false", "--initial-peers", "a:1"));
    assert_int_equal(options_contrary(&o, "initial-peers", "no-dht", why), CLI_DONE);
    assert_true(options_given(&o, "initial-peers"));
    options_free(&o);
}

static void idle_option_has_its_default_again(void **state)
{
    (void)state;
    setenv("SKEP_MAX_BATCH_SIZE", "7", 1);
    struct options o = parse_good(NO_ARGS);

    assert_int_equal(options_idle(&o, "max-batch-size", "does %s", "nothing"), CLI_DONE);
    assert_int_equal(options_int(&o, "max-batch-size"), 4096);
    assert_false(options_given(&o, "max-batch-size"));
    options_free(&o);
    unsetenv("SKEP_MAX_BATCH_SIZE");
    o = parse_good(ARGS("--max-batch-size", "7"));
    assert_int_equal(options_idle(&o, "max-batch-size", "does nothing"), CLI_USAGE);
    options_free(&o);
}

static void keep_line(enum skep_log_level level, const char *line, void *arg)
{
    char *lines = arg;

    assert_int_equal(level, SKEP_LOG_WARNING);
    size_t used = strlen(lines);
    snprintf(lines + used, 1024 - used, "%s\n", line);
}

static void scalars_given_twice_are_warned_about(void **state)
{
    (void)state;
    char lines[1024] = "";
    struct options o = parse_good(ARGS("--swarm", "a", "--swarm", "b", "--no-dht", "--no-dht",
                                       "--cache", "1M", "--cache=1M", "--even", "ab", "--even=cd"));

    skep_log_set(SKEP_LOG_WARNING, keep_line, lines);
    options_warn_of_repeated(&o);
    skep_log_set(SKEP_LOG_WARNING, NULL, NULL);
    assert_string_equal(lines, "--swarm: given as \"a\" and again as \"b\": the last one counts\n");
    options_free(&o);
}

static void variables_of_no_option_are_warned_about(void **state)
{
    (void)state;
    char lines[1024] = "";

    setenv("SKEP_INITAL_PEERS", "a:1", 1);
    setenv("SKEP_ZZZZZZZZZZZZ", "1", 1);
    setenv("SKEP_BAD_ONE_THAT_IS_EMPTY", "", 1);
    setenv("SKEP_CHECKPOINT_PERIOD", "1m", 1); /* of another command than most */
    setenv("SKEP_LOG_LEVEL", "warning", 1);
    setenv("SKEPTICAL", "1", 1);
    skep_log_set(SKEP_LOG_WARNING, keep_line, lines);
    environment_warn();
    skep_log_set(SKEP_LOG_WARNING, NULL, NULL);
    assert_non_null(strstr(lines, "\"SKEP_INITAL_PEERS\" is no option of any command, it does "
                                  "nothing; did you mean SKEP_INITIAL_PEERS?\n"));
    assert_non_null(strstr(lines, "\"SKEP_ZZZZZZZZZZZZ\" is no option of any command, it does "
                                  "nothing\n"));
    for (const char *p = strstr(lines, "\"SKEP"); p != NULL; p = strstr(p + 1, "\"SKEP"))
        if (strncmp(p, "\"SKEP_INITAL", 12) != 0 && strncmp(p, "\"SKEP_ZZ", 8) != 0 &&
            strncmp(p, "\"SKEP_GOLDEN_DIR", 15) != 0) /* which ctest sets */
            fail_msg("%s", lines);
    char **others = environment_of_others();
    assert_non_null(others);
    bool path_is_there = false;
    for (char **p = others; *p != NULL; p++) {
        assert_int_not_equal(strncmp(*p, "SKEP_", 5), 0);
        path_is_there |= strncmp(*p, "SKEPTICAL=", 10) == 0;
    }
    assert_true(path_is_there);
    mem_free(others);
    for (const char *const *name =
             (const char *const[]){"SKEP_INITAL_PEERS", "SKEP_ZZZZZZZZZZZZ",
                                   "SKEP_BAD_ONE_THAT_IS_EMPTY", "SKEP_CHECKPOINT_PERIOD",
                                   "SKEP_LOG_LEVEL", "SKEPTICAL", NULL};
         *name != NULL; name++)
        unsetenv(*name);
}

static int make_dir(void **state)
{
    (void)state;
    tempdir_make(&dir);
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    tempdir_remove(&dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_hold_without_anything_given),
        cmocka_unit_test(both_spellings_on_the_command_line_are_read),
        cmocka_unit_test(last_scalar_of_the_command_line_counts),
        cmocka_unit_test(lists_are_repeated_and_separated_by_commas),
        cmocka_unit_test(units_scale_numbers),
        cmocka_unit_test(wrong_values_name_option_value_and_expectation),
        cmocka_unit_test(unknown_option_suggests_the_nearest),
        cmocka_unit_test(command_line_wins_over_environment_over_file),
        cmocka_unit_test(values_of_file_and_environment_lose_their_quotes),
        cmocka_unit_test(variables_of_a_kubernetes_service_are_ignored),
        cmocka_unit_test(version_is_asked_for_like_help),
        cmocka_unit_test(file_has_comments_continued_lists_and_flags),
        cmocka_unit_test(list_may_have_commas_before_continued_lines),
        cmocka_unit_test(mistakes_in_the_file_are_named_by_line),
        cmocka_unit_test(mistakes_in_the_file_are_named_though_the_command_line_wins),
        cmocka_unit_test(unreadable_file_is_named),
        cmocka_unit_test(required_options_and_arguments_are_asked_for),
        cmocka_unit_test(help_shows_usage_examples_and_defaults),
        cmocka_unit_test(begin_answers_help_and_bad_usage),
        cmocka_unit_test(option_of_the_lower_rank_gives_way),
        cmocka_unit_test(idle_option_has_its_default_again),
        cmocka_unit_test(variables_of_no_option_are_warned_about),
        cmocka_unit_test(scalars_given_twice_are_warned_about),
        cmocka_unit_test(every_failed_allocation_is_reported),
    };
    return cmocka_run_group_tests_name("options", tests, make_dir, remove_dir);
}
