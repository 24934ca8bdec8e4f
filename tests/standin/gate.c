#define _GNU_SOURCE
#include "gate.h"

#include "table.h"

#include <fnmatch.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct device_handle {
    unsigned gpu, mig;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static unsigned inits;
static unsigned inside; /* calls that have passed the rules or wait in one */
static pid_t owner;

static struct device_handle gpu_handles[MAX_GPUS];
static struct device_handle mig_handles[MAX_GPUS * MAX_MIG];

/* Another thread of the parent may have held the mutex when this child was forked. */
static void after_fork(void)
{
    pthread_mutex_init(&mutex, NULL);
    inside = 0;
}

__attribute__((constructor)) static void set_up(void)
{
    pthread_atfork(NULL, NULL, after_fork);
    for (unsigned i = 0; i < MAX_GPUS; i++)
        gpu_handles[i].gpu = i;
    for (unsigned i = 0; i < MAX_GPUS * MAX_MIG; i++)
        mig_handles[i] = (struct device_handle){.gpu = i / MAX_MIG, .mig = i % MAX_MIG};
}

nvmlDevice_t gpu_handle(const struct gpu *gpu)
{
    return gpu_handles + gpu->index;
}

nvmlDevice_t mig_handle(const struct mig *mig)
{
    return mig_handles + mig->gpu * MAX_MIG + mig->index;
}

/* True for `nvmlDeviceGetCount_v2` both under that name and without the version. */
static bool names_function(const char *glob, enum function function)
{
    const char *name = function_name(function);
    if (!fnmatch(glob, name, 0))
        return true;
    char plain[64];
    strcpy(plain, name);
    char *version = strstr(plain, "_v");
    if (!version)
        return false;
    *version = '\0';
    return !fnmatch(glob, plain, 0);
}

/* The first rule of a kind that applies; every rule that matches counts the call. */
static struct rule *applicable(struct state *state, enum rule_kind kind, enum function function, int gpu)
{
    struct rule *found = NULL;
    for (unsigned i = 0; i < state->rule_count; i++) {
        struct rule *rule = state->rules + i;
        if (rule->kind != kind || (rule->gpu >= 0 && rule->gpu != gpu) || !names_function(rule->fn, function))
            continue;
        uint64_t seen = rule->seen++;
        if (!found && seen >= rule->after && seen - rule->after < rule->count)
            found = rule;
    }
    return found;
}

static bool still_there(const char *rule_text)
{
    const struct state *state = state_current();
    for (unsigned i = 0; state && i < state->rule_count; i++)
        if (!strcmp(state->rules[i].text, rule_text))
            return true;
    return false;
}

static uint64_t monotonic_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

/* Sleeps without the mutex, so that calls to other GPUs go on, and no longer than the rule stands in the file. */
static void sleep_by(const struct rule *rule)
{
    char text[sizeof rule->text];
    uint64_t end = monotonic_us() + rule->us;
    strcpy(text, rule->text);
    for (uint64_t now = monotonic_us(); now < end && still_there(text); now = monotonic_us()) {
        useconds_t slice = end - now < 5000 ? (useconds_t)(end - now) : 5000;
        pthread_mutex_unlock(&mutex);
        usleep(slice);
        pthread_mutex_lock(&mutex);
    }
}

static nvmlReturn_t apply_rules(struct state *state, enum function function, int gpu)
{
    const struct rule *delay = applicable(state, RULE_DELAY, function, gpu);
    if (delay) {
        sleep_by(delay);
        state = state_current();
        if (!state)
            return NVML_ERROR_UNINITIALIZED;
    }
    const struct rule *fail = applicable(state, RULE_FAIL, function, gpu);
    return fail ? fail->code : NVML_SUCCESS;
}

static void use_files(void)
{
    const char *state = getenv("NVML_STANDIN_STATE"), *table = getenv("NVML_STANDIN_TABLE");
    const char *calls = getenv("NVML_STANDIN_CALLS");
    state_use(state ? state : "");
    table_use(table ? table : "");
    calls_use(calls ? calls : "");
}

static bool initialised(void)
{
    return inits && owner == getpid();
}

nvmlReturn_t gate_init(enum function function)
{
    pthread_mutex_lock(&mutex);
    use_files();
    calls_count(function);
    struct state *state = state_current();
    inside++;
    nvmlReturn_t result = state ? apply_rules(state, function, -1) : NVML_ERROR_DRIVER_NOT_LOADED;
    inside--;
    if (result == NVML_SUCCESS) {
        inits = initialised() ? inits + 1 : 1;
        owner = getpid();
        calls_init_held(1);
    }
    return gate_leave(result);
}

nvmlReturn_t gate_shutdown(void)
{
    struct call call;
    nvmlReturn_t result = gate_enter_system(&call, FN_nvmlShutdown);
    if (result != NVML_SUCCESS)
        return result;
    /* The real library crashes here (nvitop#222); this one counts. */
    if (inside && inits == 1)
        calls_shutdown_while_inside();
    inits--;
    calls_init_held(-1);
    return gate_leave(NVML_SUCCESS);
}

static nvmlReturn_t begin(struct call *call, struct state **state)
{
    *state = state_current();
    if (!initialised() || !*state)
        return NVML_ERROR_UNINITIALIZED;
    *call = (struct call){.state = *state, .now_us = state_now_us(*state)};
    return NVML_SUCCESS;
}

static nvmlReturn_t find_handle(const struct state *state, const void *wanted, const struct gpu **gpu,
                                const struct mig **mig)
{
    const struct device_handle *handle = wanted;
    bool whole = handle >= gpu_handles && handle < gpu_handles + MAX_GPUS;
    bool part = handle >= mig_handles && handle < mig_handles + MAX_GPUS * MAX_MIG;
    if (!whole && !part)
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = state->gpus + handle->gpu;
    if (!(*gpu)->present)
        return NVML_ERROR_GPU_IS_LOST;
    if (whole)
        return NVML_SUCCESS;
    *mig = (*gpu)->migs + handle->mig;
    return (*mig)->present && (*gpu)->mig_mode ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

/* A rule may sleep, and the state be replaced meanwhile: begin and find are done again after the rules. */
static nvmlReturn_t enter(struct call *call, enum function function, gate_finder find, const void *wanted)
{
    struct state *state;
    nvmlReturn_t result = begin(call, &state);
    if (result != NVML_SUCCESS)
        return result;
    nvmlReturn_t found = find ? find(state, wanted, &call->gpu, &call->mig) : NVML_SUCCESS;
    inside++;
    result = apply_rules(state, function, call->gpu ? (int)call->gpu->index : -1);
    inside--;
    if (result != NVML_SUCCESS)
        return result;
    result = begin(call, &state);
    if (result == NVML_SUCCESS && find)
        found = find(state, wanted, &call->gpu, &call->mig);
    return result == NVML_SUCCESS ? found : result;
}

nvmlReturn_t gate_enter_found(struct call *call, enum function function, gate_finder find, const void *wanted)
{
    calls_count(function);
    pthread_mutex_lock(&mutex);
    nvmlReturn_t result = enter(call, function, find, wanted);
    if (result != NVML_SUCCESS)
        pthread_mutex_unlock(&mutex);
    return result;
}

nvmlReturn_t gate_enter_system(struct call *call, enum function function)
{
    return gate_enter_found(call, function, NULL, NULL);
}

nvmlReturn_t gate_enter_device(struct call *call, enum function function, nvmlDevice_t device)
{
    return gate_enter_found(call, function, find_handle, device);
}

nvmlReturn_t gate_leave(nvmlReturn_t result)
{
    pthread_mutex_unlock(&mutex);
    return result;
}
