#define _GNU_SOURCE
#include "calls.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* The layout that driver.py reads: a header of 64 bytes, then one record of 64 bytes for each function. */
struct record {
    char name[56];
    uint64_t count;
};

struct counters {
    char magic[8];
    uint64_t functions;
    int64_t held_inits;
    uint64_t shutdowns_while_inside;
    uint64_t unused[4];
    struct record records[FUNCTION_COUNT];
};
_Static_assert(sizeof(struct record) == 64, "driver.py reads records of 64 bytes");
_Static_assert(offsetof(struct counters, records) == 64, "driver.py reads a header of 64 bytes");

#define AS_NAME(name) #name,
static const char *const NAMES[] = {FUNCTIONS(AS_NAME)};

static char calls_path[4096];
/* Counting happens without the library's mutex. A mapping is never taken away, as a slow call may still use it. */
static struct counters *counters;

const char *function_name(enum function function)
{
    return NAMES[function];
}

static struct counters *map_counters(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return NULL;
    void *mapped = MAP_FAILED;
    if (!ftruncate(fd, sizeof *counters))
        mapped = mmap(NULL, sizeof *counters, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return mapped == MAP_FAILED ? NULL : mapped;
}

void calls_use(const char *path)
{
    if (!strcmp(path, calls_path))
        return;
    snprintf(calls_path, sizeof calls_path, "%s", path);
    struct counters *next = *path ? map_counters(path) : NULL;
    if (next) {
        /* Every process writes the same bytes here, so it doesn't matter who comes first. */
        for (int i = 0; i < FUNCTION_COUNT; i++)
            strcpy(next->records[i].name, NAMES[i]);
        next->functions = FUNCTION_COUNT;
        memcpy(next->magic, "NVCALLS", 8);
    }
    __atomic_store_n(&counters, next, __ATOMIC_RELEASE);
}

void calls_count(enum function function)
{
    struct counters *c = __atomic_load_n(&counters, __ATOMIC_ACQUIRE);
    if (c)
        __atomic_add_fetch(&c->records[function].count, 1, __ATOMIC_RELAXED);
}

void calls_init_held(int change)
{
    struct counters *c = __atomic_load_n(&counters, __ATOMIC_ACQUIRE);
    if (c)
        __atomic_add_fetch(&c->held_inits, change, __ATOMIC_RELAXED);
}

void calls_shutdown_while_inside(void)
{
    struct counters *c = __atomic_load_n(&counters, __ATOMIC_ACQUIRE);
    if (c)
        __atomic_add_fetch(&c->shutdowns_while_inside, 1, __ATOMIC_RELAXED);
}
