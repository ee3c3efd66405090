/*
 * Golden grids, for the tests that walk them: every scenario of every file of $SKEP_GOLDEN_DIR/moe.
 * What is in them: tests/golden/README.md, "Routing".
 */
#ifndef SKEP_TESTS_GOLDEN_MOE_H
#define SKEP_TESTS_GOLDEN_MOE_H

#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit.h"
#include "dht/directory/beam.h"
#include "golden_dir.h"

enum { GOLDEN_MAX_FILES = 16, GOLDEN_MAX_SCENARIOS = 64 };

struct golden_scenario {
    char label[96]; /* "grid_4x4.json, sparse" */
    size_t dims, k;
    int64_t sizes[BEAM_MAX_DIMS];
    const json_t *alive, *samples; /* views of the file */
};

struct golden_moe {
    json_t *files[GOLDEN_MAX_FILES]; /* owned */
    size_t file_count, count;
    struct golden_scenario scenarios[GOLDEN_MAX_SCENARIOS];
};

static inline int golden_is_json(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');

    return dot != NULL && strcmp(dot, ".json") == 0;
}

static inline void golden_moe_load_file(struct golden_moe *g, const char *folder, const char *name)
{
    char path[GOLDEN_PATH_BYTES + 256];
    json_error_t error;
    json_t *scenario, *size;
    size_t i, d;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    json_t *root = json_load_file(path, 0, &error);
    if (root == NULL)
        fail_msg("%s: %s", path, error.text);
    assert_true(g->file_count < GOLDEN_MAX_FILES);
    g->files[g->file_count++] = root;
    const json_t *grid = json_object_get(root, "grid"),
                 *scenarios = json_object_get(root, "scenarios");
    assert_in_range(json_array_size(grid), 1, BEAM_MAX_DIMS);
    assert_true(json_array_size(scenarios) > 0);
    json_array_foreach(scenarios, i, scenario)
    {
        assert_true(g->count < GOLDEN_MAX_SCENARIOS);
        struct golden_scenario *s = &g->scenarios[g->count++];
        snprintf(s->label, sizeof(s->label), "%s, %s", name,
                 json_string_value(json_object_get(scenario, "name")));
        s->k = (size_t)json_integer_value(json_object_get(root, "k"));
        json_array_foreach(grid, d, size) s->sizes[s->dims++] = json_integer_value(size);
        s->alive = json_object_get(scenario, "alive");
        s->samples = json_object_get(scenario, "samples");
        assert_true(json_is_array(s->alive) && json_array_size(s->samples) > 0);
    }
}

/* golden_moe_free(). Ends the program if there is nothing to walk. */
static inline void golden_moe_load(struct golden_moe *g)
{
    char folder[GOLDEN_PATH_BYTES];
    struct dirent **entries;

    memset(g, 0, sizeof(*g));
    size_t n = golden_list(golden_path("moe", folder), golden_is_json, GOLDEN_MAX_FILES, &entries);
    for (size_t i = 0; i < n; i++) {
        golden_moe_load_file(g, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
}

static inline void golden_moe_free(struct golden_moe *g)
{
    for (size_t i = 0; i < g->file_count; i++)
        json_decref(g->files[i]);
    memset(g, 0, sizeof(*g));
}

/* The coordinates of a UID of a file. */
static inline void golden_coords(const struct golden_scenario *s, const json_t *uid,
                                 int64_t coords[static BEAM_MAX_DIMS])
{
    struct uid parsed;

    assert_int_equal(uid_parse(&parsed, json_string_value(uid), NULL), SKEP_OK);
    assert_int_equal(parsed.coord_count, s->dims);
    memcpy(coords, parsed.coords, s->dims * sizeof(*coords));
}

/* The scores of one sample in one dimension: sizes[d] numbers. */
static inline void golden_scores(const struct golden_scenario *s, size_t sample, size_t d,
                                 double *out)
{
    const json_t *line =
        json_array_get(json_object_get(json_array_get(s->samples, sample), "grid_scores"), d);
    json_t *score;
    size_t c;

    assert_int_equal(json_array_size(line), s->sizes[d]);
    json_array_foreach(line, c, score) out[c] = json_number_value(score);
}

/* The experts of one sample, best first: an array of objects. */
static inline const json_t *golden_expected(const struct golden_scenario *s, size_t sample)
{
    const json_t *expected = json_object_get(json_array_get(s->samples, sample), "expected");

    assert_true(json_is_array(expected));
    return expected;
}

#endif
