#include "dht/opendht/opendht_binding.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __ELF_NATIVE_CLASS == 64
#define SYMBOL_OF ELF64_R_SYM
#else
#define SYMBOL_OF ELF32_R_SYM
#endif

struct question {
    const char *symbol;
    const void *function;
    bool answer;
};

/* What the dynamic section of a library says of the calls it makes to others. */
struct calls {
    const ElfW(Rela) * relocations;
    size_t count;
    const ElfW(Sym) * symbols;
    const char *names;
};

static const ElfW(Dyn) * dynamic_section(const struct dl_phdr_info *info)
{
    for (size_t i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            return (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    return NULL;
}

/* The linker has made addresses of the section's offsets when it loaded the library. */
static struct calls calls_of(const ElfW(Dyn) * d)
{
    struct calls c = {0};
    bool is_rela = false;

    for (; d->d_tag != DT_NULL; d++) {
        if (d->d_tag == DT_JMPREL)
            c.relocations = (const ElfW(Rela) *)d->d_un.d_ptr;
        else if (d->d_tag == DT_PLTRELSZ)
            c.count = d->d_un.d_val / sizeof(ElfW(Rela));
        else if (d->d_tag == DT_PLTREL)
            is_rela = d->d_un.d_val == DT_RELA;
        else if (d->d_tag == DT_SYMTAB)
            c.symbols = (const ElfW(Sym) *)d->d_un.d_ptr;
        else if (d->d_tag == DT_STRTAB)
            c.names = (const char *)d->d_un.d_ptr;
    }
    if (!is_rela || c.relocations == NULL || c.symbols == NULL || c.names == NULL)
        c.count = 0;
    return c;
}

static int look(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct question *q = arg;
    const ElfW(Dyn) *dynamic = dynamic_section(info);

    (void)size;
    if (dynamic == NULL || info->dlpi_name == NULL ||
        strstr(info->dlpi_name, "libopendht.") == NULL)
        return 0;
    const struct calls c = calls_of(dynamic);
    for (size_t i = 0; i < c.count; i++) {
        const ElfW(Rela) *r = &c.relocations[i];
        if (strcmp(c.names + c.symbols[SYMBOL_OF(r->r_info)].st_name, q->symbol) != 0)
            continue;
        const void *bound;
        memcpy(&bound, (const void *)(info->dlpi_addr + r->r_offset), sizeof(bound));
        q->answer = bound == q->function;
    }
    return 1;
}

bool opendht_binding_is(const char *symbol, const void *function)
{
    struct question q = {.symbol = symbol, .function = function};

    dl_iterate_phdr(look, &q);
    return q.answer;
}
