/* Reads the state file. A line that can't be understood is reported on stderr and left out. */
#include "state.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum kind { TEXT, NUMBER, SIGNED, SERIES, SECONDS, WIDE };

struct field {
    const char *key;
    enum kind kind;
    size_t offset, size;
};

#define FIELD(kind, type, member) {#member, kind, offsetof(struct type, member), sizeof(((struct type *)0)->member)}
#define NAMED(key, kind, type, member) {key, kind, offsetof(struct type, member), sizeof(((struct type *)0)->member)}
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

static const struct field GPU_FIELDS[] = {
    FIELD(NUMBER, gpu, index), FIELD(NUMBER, gpu, minor), NAMED("mig", NUMBER, gpu, mig_mode),
    FIELD(NUMBER, gpu, cuda_major), FIELD(NUMBER, gpu, cuda_minor), FIELD(TEXT, gpu, name), FIELD(TEXT, gpu, uuid),
    FIELD(TEXT, gpu, serial), FIELD(TEXT, gpu, pci), FIELD(SERIES, gpu, memory_total),
    FIELD(SERIES, gpu, memory_reserved), FIELD(SERIES, gpu, memory_base), FIELD(SERIES, gpu, memory_used),
    FIELD(SERIES, gpu, utilization), FIELD(SERIES, gpu, memory_utilization), FIELD(SERIES, gpu, encoder),
    FIELD(SERIES, gpu, decoder), FIELD(SERIES, gpu, power), FIELD(SERIES, gpu, power_limit),
    FIELD(SERIES, gpu, temperature), FIELD(SERIES, gpu, fan), FIELD(SERIES, gpu, energy), FIELD(SERIES, gpu, clock),
    FIELD(SERIES, gpu, performance_state),
};

static const struct field MIG_FIELDS[] = {
    FIELD(NUMBER, mig, gpu), FIELD(NUMBER, mig, index), FIELD(NUMBER, mig, gi), FIELD(NUMBER, mig, ci),
    FIELD(NUMBER, mig, slices), FIELD(WIDE, mig, memory), FIELD(TEXT, mig, uuid),
};

static const struct field PROCESS_FIELDS[] = {
    FIELD(NUMBER, process, gpu), FIELD(NUMBER, process, pid), FIELD(NUMBER, process, sample_pid),
    FIELD(NUMBER, process, gi), FIELD(NUMBER, process, ci), FIELD(TEXT, process, type),
    FIELD(SERIES, process, memory), FIELD(SERIES, process, sm), FIELD(SERIES, process, mem),
    FIELD(SERIES, process, enc), FIELD(SERIES, process, dec),
};

static const struct field SAMPLE_FIELDS[] = {
    FIELD(NUMBER, sample, gpu), FIELD(NUMBER, sample, pid), FIELD(NUMBER, sample, sm), FIELD(NUMBER, sample, mem),
    FIELD(NUMBER, sample, enc), FIELD(NUMBER, sample, dec), NAMED("at", SECONDS, sample, at_us),
};

static const struct field RULE_FIELDS[] = {
    FIELD(TEXT, rule, fn), FIELD(SIGNED, rule, gpu), FIELD(SIGNED, rule, code), FIELD(WIDE, rule, us),
    FIELD(WIDE, rule, after), FIELD(WIDE, rule, count), FIELD(WIDE, rule, id),
};

static const struct field DRIVER_FIELDS[] = {
    NAMED("version", TEXT, state, driver), FIELD(TEXT, state, nvml), FIELD(NUMBER, state, cuda),
};

static const struct field PIDS_FIELDS[] = {
    NAMED("list", SIGNED, state, list_offset), NAMED("samples", SIGNED, state, sample_offset),
};

static struct state states[2];
static struct state *current;
static char state_path[4096];
static struct stat last_stat;

static bool whole_number(const char *text, long long low, long long high, long long *number)
{
    char *end;
    errno = 0;
    *number = strtoll(text, &end, 0);
    return end != text && !*end && !errno && *number >= low && *number <= high;
}

static bool seconds(const char *text, int64_t *us)
{
    char *end;
    double number = strtod(text, &end);
    if (end == text || *end || !isfinite(number))
        return false;
    *us = llround(number * 1e6);
    return true;
}

static bool parse_step(char *text, struct step *step)
{
    char *at = strchr(text, '@');
    step->at_us = 0;
    if (at) {
        *at = '\0';
        if (!seconds(at + 1, &step->at_us))
            return false;
    }
    long long number = 0;
    step->supported = strcmp(text, "ns") != 0;
    if (step->supported && !whole_number(text, 0, INT64_MAX, &number))
        return false;
    step->number = (uint64_t)number;
    return true;
}

static bool parse_series(struct state *state, char *text, struct series *series)
{
    struct step *first = state->steps + state->step_count;
    char *rest;
    series->count = 0;
    for (char *part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
        if (state->step_count == MAX_STEPS || !parse_step(part, state->steps + state->step_count))
            return false;
        state->step_count++;
        series->count++;
    }
    series->steps = first;
    return series->count > 0;
}

static bool set_field(struct state *state, void *record, const struct field *field, char *text)
{
    char *target = (char *)record + field->offset;
    long long number;
    switch (field->kind) {
    case TEXT:
        return (size_t)snprintf(target, field->size, "%s", text) < field->size;
    case SERIES:
        return parse_series(state, text, (struct series *)target);
    case SECONDS:
        return seconds(text, (int64_t *)target);
    case NUMBER:
        if (!whole_number(text, 0, UINT32_MAX, &number))
            return false;
        *(unsigned *)target = (unsigned)number;
        return true;
    case SIGNED:
        if (!whole_number(text, INT32_MIN, INT32_MAX, &number))
            return false;
        *(int *)target = (int)number;
        return true;
    case WIDE:
        if (!whole_number(text, 0, INT64_MAX, &number))
            return false;
        *(uint64_t *)target = (uint64_t)number;
        return true;
    }
    return false;
}

/* Cuts `key=value` or `key="value with spaces"` off *rest; false at the end of the line or on bad syntax. */
static bool next_pair(char **rest, char **key, char **value)
{
    *key = *rest + strspn(*rest, " \t");
    char *equals = strchr(*key, '=');
    if (!**key || !equals)
        return false;
    *equals = '\0';
    bool quoted = equals[1] == '"';
    *value = equals + (quoted ? 2 : 1);
    char *end = *value + strcspn(*value, quoted ? "\"" : " \t");
    if (quoted && !*end)
        return false;
    *rest = *end ? end + 1 : end;
    *end = '\0';
    return true;
}

static bool parse_fields(struct state *state, char *line, void *record, const struct field *fields, size_t count)
{
    char *key, *value;
    while (next_pair(&line, &key, &value)) {
        size_t i = 0;
        while (i < count && strcmp(fields[i].key, key))
            i++;
        if (i == count || !set_field(state, record, fields + i, value))
            return false;
    }
    return !line[strspn(line, " \t")];
}

#define PARSE(state, line, record, fields) parse_fields(state, line, record, fields, COUNT(fields))

static bool parse_gpu(struct state *state, char *line)
{
    struct gpu gpu = {.present = true, .index = MAX_GPUS, .minor = NO_INSTANCE, .cuda_major = 9};
    if (!PARSE(state, line, &gpu, GPU_FIELDS) || gpu.index >= MAX_GPUS)
        return false;
    if (gpu.minor == NO_INSTANCE)
        gpu.minor = gpu.index;
    state->gpus[gpu.index] = gpu;
    return true;
}

/* A MIG device follows the line of its GPU. */
static bool parse_mig(struct state *state, char *line)
{
    struct mig mig = {.present = true, .index = MAX_MIG, .slices = 1};
    if (!PARSE(state, line, &mig, MIG_FIELDS) || mig.gpu >= MAX_GPUS || mig.index >= MAX_MIG)
        return false;
    state->gpus[mig.gpu].migs[mig.index] = mig;
    return true;
}

static bool parse_process(struct state *state, char *line)
{
    struct process process = {.type = "C", .gi = NO_INSTANCE, .ci = NO_INSTANCE, .sample_pid = NO_INSTANCE};
    if (state->process_count == MAX_PROCESSES || !PARSE(state, line, &process, PROCESS_FIELDS))
        return false;
    if (process.sample_pid == NO_INSTANCE)
        process.sample_pid = process.pid;
    state->processes[state->process_count++] = process;
    return true;
}

static bool parse_sample(struct state *state, char *line)
{
    struct sample sample = {.at_us = INT64_MIN};
    if (state->sample_count == MAX_SAMPLES || !PARSE(state, line, &sample, SAMPLE_FIELDS))
        return false;
    sample.timed = sample.at_us != INT64_MIN;
    state->samples[state->sample_count++] = sample;
    return true;
}

/* The text of a rule is its identity: a rule found again in a rewritten file keeps its count of calls. */
static bool parse_rule(struct state *state, enum rule_kind kind, char *line)
{
    struct rule rule = {.kind = kind, .fn = "*", .gpu = -1, .count = UINT64_MAX};
    if ((size_t)snprintf(rule.text, sizeof rule.text, "%d %s", kind, line) >= sizeof rule.text)
        return false;
    if (state->rule_count == MAX_RULES || !PARSE(state, line, &rule, RULE_FIELDS))
        return false;
    for (unsigned i = 0; current && i < current->rule_count; i++)
        if (!strcmp(current->rules[i].text, rule.text))
            rule.seen = current->rules[i].seen;
    state->rules[state->rule_count++] = rule;
    return true;
}

static bool parse_line(struct state *state, char *line)
{
    char *rest = line + strcspn(line, " \t");
    if (*rest)
        *rest++ = '\0';
    if (!strcmp(line, "gpu"))
        return parse_gpu(state, rest);
    if (!strcmp(line, "mig"))
        return parse_mig(state, rest);
    if (!strcmp(line, "process"))
        return parse_process(state, rest);
    if (!strcmp(line, "sample"))
        return parse_sample(state, rest);
    if (!strcmp(line, "fail"))
        return parse_rule(state, RULE_FAIL, rest);
    if (!strcmp(line, "delay"))
        return parse_rule(state, RULE_DELAY, rest);
    if (!strcmp(line, "driver"))
        return PARSE(state, rest, state, DRIVER_FIELDS);
    if (!strcmp(line, "pids"))
        return PARSE(state, rest, state, PIDS_FIELDS);
    if (!strcmp(line, "origin"))
        return seconds(rest, &state->origin_us);
    if (!strcmp(line, "now"))
        return state->frozen = seconds(rest, &state->frozen_us);
    return false;
}

static void parse_file(FILE *file, struct state *state)
{
    static char line[65536], copy[65536];
    memset(state, 0, offsetof(struct state, steps));
    state->process_count = state->sample_count = state->rule_count = state->step_count = 0;
    strcpy(state->driver, "570.86.15");
    strcpy(state->nvml, "12.570.86.15");
    state->cuda = 12080;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (!*line || *line == '#')
            continue;
        strcpy(copy, line);
        if (!parse_line(state, copy))
            fprintf(stderr, "stand-in NVML: can't read the line: %s\n", line);
    }
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

void state_use(const char *path)
{
    if (!strcmp(path, state_path))
        return;
    snprintf(state_path, sizeof state_path, "%s", path);
    current = NULL;
}

struct state *state_current(void)
{
    struct stat now;
    if (!*state_path || stat(state_path, &now) || (current && same_file(&now, &last_stat)))
        return current;
    FILE *file = fopen(state_path, "re");
    if (!file)
        return current;
    /* The file may have been replaced since stat(): remember the one that is really read. */
    fstat(fileno(file), &last_stat);
    struct state *next = current == states ? states + 1 : states;
    parse_file(file, next);
    fclose(file);
    return current = next;
}

int64_t state_now_us(const struct state *state)
{
    if (state->frozen)
        return state->origin_us + state->frozen_us;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

bool series_at(const struct state *state, struct series series, int64_t now_us, uint64_t *number)
{
    if (!series.count)
        return false;
    unsigned i = 0;
    while (i + 1 < series.count && series.steps[i + 1].at_us <= now_us - state->origin_us)
        i++;
    *number = series.steps[i].number;
    return series.steps[i].supported;
}

unsigned state_gpu_count(const struct state *state)
{
    unsigned count = 0;
    for (unsigned i = 0; i < MAX_GPUS; i++)
        if (state->gpus[i].present)
            count = i + 1;
    return count;
}
