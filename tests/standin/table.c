#define _GNU_SOURCE
#include "table.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 1024, HEADER = 64 };

struct slot {
    uint32_t pid, gpu, type, gi, ci, sm, mem, enc, dec, unused;
    uint64_t memory;
    uint64_t padding[2];
};
_Static_assert(sizeof(struct slot) == 64, "context.py writes slots of 64 bytes");

static char table_path[4096];
static int table_fd = -1;

/* The pid that holds the lock of a slot, 0 if none does. An open-file-description query also sees the locks of the
 * calling process itself, which F_GETLK would not report. */
static unsigned holder(unsigned slot)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = slot, .l_len = 1, .l_pid = 0};
    if (fcntl(table_fd, F_OFD_GETLK, &lock) || lock.l_type == F_UNLCK)
        return 0;
    return (unsigned)lock.l_pid;
}

static bool read_slots(struct slot *slots)
{
    if (table_fd < 0 && *table_path)
        table_fd = open(table_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (table_fd < 0)
        return false;
    ssize_t size = pread(table_fd, slots, SLOTS * sizeof *slots, HEADER);
    if (size < 0)
        return false;
    memset((char *)slots + size, 0, SLOTS * sizeof *slots - (size_t)size);
    return true;
}

/* Closing any descriptor of the file would drop the locks that this process itself holds on it, and with them its
 * own place in the list; then the descriptor is left open. */
static bool holds_own_slot(void)
{
    static struct slot slots[SLOTS];
    if (!read_slots(slots))
        return false;
    for (unsigned i = 0; i < SLOTS; i++)
        if (slots[i].pid == (unsigned)getpid() && holder(i) == slots[i].pid)
            return true;
    return false;
}

void table_use(const char *path)
{
    if (!strcmp(path, table_path))
        return;
    if (table_fd >= 0 && !holds_own_slot())
        close(table_fd);
    table_fd = -1;
    snprintf(table_path, sizeof table_path, "%s", path);
}

enum { VALUES = 5 };

static struct series constant(struct step *step, uint64_t number)
{
    *step = (struct step){.number = number, .supported = number != NVML_VALUE_NOT_AVAILABLE};
    return (struct series){.steps = step, .count = 1};
}

static struct process from_slot(const struct state *state, const struct slot *slot, struct step steps[VALUES])
{
    struct process process = {
        .gpu = slot->gpu,
        .pid = slot->pid + (unsigned)state->list_offset,
        .sample_pid = slot->pid + (unsigned)state->sample_offset,
        .gi = slot->gi,
        .ci = slot->ci,
        .type = {(char)slot->type, '\0'},
        .memory = constant(steps + 0, slot->memory),
        .sm = constant(steps + 1, slot->sm),
        .mem = constant(steps + 2, slot->mem),
        .enc = constant(steps + 3, slot->enc),
        .dec = constant(steps + 4, slot->dec),
    };
    return process;
}

unsigned table_append(const struct state *state, struct process *processes, unsigned count, unsigned capacity)
{
    static struct slot slots[SLOTS];
    static struct step steps[SLOTS][VALUES];
    if (!read_slots(slots))
        return count;
    for (unsigned i = 0; i < SLOTS && count < capacity; i++)
        /* A slot that was left behind and taken again may not be filled in yet: its pid isn't the holder's. */
        if (slots[i].pid && holder(i) == slots[i].pid)
            processes[count++] = from_slot(state, slots + i, steps[i]);
    return count;
}
