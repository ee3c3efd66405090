/* Intrusive lists: the order, whatever goes and comes back. */
#include "unit.h"

#include "base/list.h"

enum { THINGS = 4 };

struct thing {
    int number;
    struct list_link in_list;
};

static struct thing *thing_of(struct list_link *link)
{
    return LIST_HOLDER(link, struct thing, in_list);
}

static void assert_order(const struct linked_list *list, const int *numbers, size_t count)
{
    struct list_link *l = list->first;

    for (size_t i = 0; i < count; i++, l = l->next) {
        assert_non_null(l);
        assert_int_equal(thing_of(l)->number, numbers[i]);
    }
    assert_null(l);
    l = list->last;
    for (size_t i = count; i-- > 0; l = l->prev) {
        assert_non_null(l);
        assert_int_equal(thing_of(l)->number, numbers[i]);
    }
    assert_null(l);
}

static void each_end_takes_and_each_place_gives(void **state)
{
    (void)state;
    for (size_t gone = 0; gone < THINGS; gone++) {
        struct thing things[THINGS] = {{.number = 0}, {.number = 1}, {.number = 2}, {.number = 3}};
        struct linked_list list = {0};
        int order[THINGS] = {0, 1, 2, 3}, rest[THINGS];
        size_t count = 0;

        list_append(&list, &things[2].in_list);
        list_append(&list, &things[3].in_list);
        list_prepend(&list, &things[1].in_list);
        list_prepend(&list, &things[0].in_list);
        assert_order(&list, order, THINGS);
        list_remove(&list, &things[gone].in_list);
        for (size_t i = 0; i < THINGS; i++)
            if (i != gone)
                rest[count++] = order[i];
        assert_order(&list, rest, count);
        list_append(&list, &things[gone].in_list); /* as it is, though it has old links */
        rest[count++] = (int)gone;
        assert_order(&list, rest, count);
        while (list.first != NULL)
            list_remove(&list, list.first);
        assert_order(&list, NULL, 0);
    }
}

static void the_only_one_is_first_and_last(void **state)
{
    (void)state;
    struct thing thing = {.number = 7};
    struct linked_list list = {0};

    assert_null(thing_of(list.first));
    list_prepend(&list, &thing.in_list);
    assert_order(&list, &thing.number, 1);
    list_remove(&list, &thing.in_list);
    assert_order(&list, NULL, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_end_takes_and_each_place_gives),
        cmocka_unit_test(the_only_one_is_first_and_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
