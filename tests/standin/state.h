/* What the state file says, parsed: GPUs, MIG devices, processes, extra samples, rules, the clock.
 *
 * The format is described in README.md. Nothing here locks; the caller holds the library's mutex. */
#ifndef STANDIN_STATE_H
#define STANDIN_STATE_H

#include "abi.h"

#include <stdbool.h>

enum {
    MAX_GPUS = 16,
    MAX_MIG = 8,
    MAX_PROCESSES = 1024,
    MAX_SAMPLES = 256,
    MAX_RULES = 64,
    MAX_STEPS = 16384,
};

/* One step of a value over time: from `at_us` after the origin on. */
struct step {
    int64_t at_us;
    uint64_t number;
    bool supported;
};

/* A value over time; no steps = the state file doesn't give it. */
struct series {
    const struct step *steps;
    unsigned count;
};

struct mig {
    bool present;
    unsigned gpu, index, gi, ci, slices;
    uint64_t memory;
    char uuid[96];
};

struct gpu {
    bool present;
    unsigned index, minor, mig_mode, cuda_major, cuda_minor;
    char name[96], uuid[96], serial[30], pci[32];
    struct series memory_total, memory_reserved, memory_base, memory_used;
    struct series utilization, memory_utilization, encoder, decoder;
    struct series power, power_limit, temperature, fan, energy, clock, performance_state;
    struct mig migs[MAX_MIG];
};

/* A process on one GPU. `sample_pid` is the pid under which its utilisation is reported. */
struct process {
    unsigned gpu, pid, sample_pid, gi, ci;
    char type[2];
    struct series memory, sm, mem, enc, dec;
};

/* A utilisation sample reported as it stands, whatever the process list says. */
struct sample {
    unsigned gpu, pid, sm, mem, enc, dec;
    bool timed;
    int64_t at_us;
};

enum rule_kind { RULE_FAIL, RULE_DELAY };

struct rule {
    enum rule_kind kind;
    char text[256], fn[96];
    int gpu, code;
    uint64_t us, after, count, id;
    uint64_t seen;
};

struct state {
    char driver[80], nvml[80];
    unsigned cuda;
    int64_t origin_us, frozen_us;
    bool frozen;
    int list_offset, sample_offset;
    struct gpu gpus[MAX_GPUS];
    struct process processes[MAX_PROCESSES];
    struct sample samples[MAX_SAMPLES];
    struct rule rules[MAX_RULES];
    struct step steps[MAX_STEPS];
    unsigned process_count, sample_count, rule_count, step_count;
};

/* The state in force, read again if the file changed; NULL while none could ever be read. */
struct state *state_current(void);

/* Reads another file from now on, if `path` differs from the one in use. */
void state_use(const char *path);

/* Microseconds since the epoch on the stand-in's clock, which the state file may have frozen. */
int64_t state_now_us(const struct state *state);

/* The value in force at `now_us`; false where the series says "not supported" or isn't given. */
bool series_at(const struct state *state, struct series series, int64_t now_us, uint64_t *number);

unsigned state_gpu_count(const struct state *state);

#endif
