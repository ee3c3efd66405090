/*
 * Doubly linked lists of things that hold their links themselves: one link for each list that a
 * thing may be in at the same time. One thread at a time.
 */
#ifndef SKEP_BASE_LIST_H
#define SKEP_BASE_LIST_H

#include <stddef.h>

struct list_link {
    struct list_link *prev, *next;
};

struct linked_list { /* zeroed: empty */
    struct list_link *first, *last;
};

/* What holds a link, as `member`; NULL for NULL. */
#define LIST_HOLDER(link, type, member) ((type *)list_holder((link), offsetof(type, member)))

static inline void *list_holder(struct list_link *link, size_t offset)
{
    return link != NULL ? (char *)link - offset : NULL;
}

static inline void list_append(struct linked_list *list, struct list_link *link)
{
    link->prev = list->last;
    link->next = NULL;
    if (list->last != NULL)
        list->last->next = link;
    else
        list->first = link;
    list->last = link;
}

static inline void list_prepend(struct linked_list *list, struct list_link *link)
{
    link->prev = NULL;
    link->next = list->first;
    if (list->first != NULL)
        list->first->prev = link;
    else
        list->last = link;
    list->first = link;
}

/* The link must be in this list. */
static inline void list_remove(struct linked_list *list, const struct list_link *link)
{
    if (link->prev != NULL)
        link->prev->next = link->next;
    else
        list->first = link->next;
    if (link->next != NULL)
        link->next->prev = link->prev;
    else
        list->last = link->prev;
}

#endif
