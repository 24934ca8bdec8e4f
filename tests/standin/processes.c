/* Entry points: which processes use a GPU, and how much. */
#define _GNU_SOURCE
#include "processes.h"

#include "table.h"

#include <string.h>

enum {
    PERIOD_US = 166667,         /* between two of the driver's samples */
    BUFFERED_US = 72 * PERIOD_US, /* how far back its buffer reaches */
    SIZING_ANSWER = 100,        /* what real drivers answer, whatever the number of processes (go-nvml#11) */
    MAX_FOUND = MAX_PROCESSES + MAX_SAMPLES,
};

const struct process *processes_of(const struct call *call, unsigned *count)
{
    static struct process all[2 * MAX_PROCESSES];
    unsigned total = call->state->process_count;
    memcpy(all, call->state->processes, total * sizeof *all);
    total = table_append(call->state, all, total, 2 * MAX_PROCESSES);
    *count = 0;
    for (unsigned i = 0; i < total; i++) {
        bool here = all[i].gpu == call->gpu->index;
        if (here && (!call->mig || (all[i].gi == call->mig->gi && all[i].ci == call->mig->ci)))
            all[(*count)++] = all[i];
    }
    return all;
}

/* The processes of one type; '*' = all types. */
static unsigned listed(const struct call *call, char type, nvmlProcessInfo_t *infos)
{
    unsigned count, found = 0;
    const struct process *processes = processes_of(call, &count);
    for (unsigned i = 0; i < count && found < MAX_FOUND; i++) {
        uint64_t memory;
        if (type != '*' && processes[i].type[0] != type)
            continue;
        if (!series_at(call->state, processes[i].memory, call->now_us, &memory))
            memory = NVML_VALUE_NOT_AVAILABLE;
        infos[found++] = (nvmlProcessInfo_t){processes[i].pid, memory, processes[i].gi, processes[i].ci};
    }
    return found;
}

/* Common to the two-call protocols: false, with the answer in *result, unless the array can be filled. */
static bool fits(unsigned found, unsigned *count, const void *array, nvmlReturn_t *result)
{
    unsigned room = *count;
    *result = NVML_SUCCESS;
    *count = found;
    if (!found)
        return false;
    if (room < found)
        *result = NVML_ERROR_INSUFFICIENT_SIZE;
    else if (!array)
        *result = NVML_ERROR_INVALID_ARGUMENT;
    return *result == NVML_SUCCESS;
}

static nvmlReturn_t list(const struct call *call, char type, unsigned *count, nvmlProcessInfo_t *infos)
{
    static nvmlProcessInfo_t all[MAX_FOUND];
    nvmlReturn_t result;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned found = listed(call, type, all);
    if (fits(found, count, infos, &result))
        memcpy(infos, all, found * sizeof *infos);
    return result;
}

static nvmlReturn_t list_v1(const struct call *call, char type, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    static nvmlProcessInfo_t all[MAX_FOUND];
    nvmlReturn_t result;
    if (!count)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned found = listed(call, type, all);
    if (fits(found, count, infos, &result))
        for (unsigned i = 0; i < found; i++)
            infos[i] = (nvmlProcessInfo_v1_t){all[i].pid, all[i].usedGpuMemory};
    return result;
}

#define LISTS(name, type)                                                                          \
    API name##_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)                  \
    {                                                                                              \
        DEVICE_CALL(name##_v3, device);                                                            \
        return gate_leave(list(&call, type, count, infos));                                        \
    }                                                                                              \
    API name##_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)                  \
    {                                                                                              \
        DEVICE_CALL(name##_v2, device);                                                            \
        return gate_leave(list(&call, type, count, infos));                                        \
    }                                                                                              \
    API name(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)                    \
    {                                                                                              \
        DEVICE_CALL(name, device);                                                                 \
        return gate_leave(list_v1(&call, type, count, infos));                                     \
    }

LISTS(nvmlDeviceGetComputeRunningProcesses, 'C')
LISTS(nvmlDeviceGetGraphicsRunningProcesses, 'G')
LISTS(nvmlDeviceGetMPSComputeRunningProcesses, 'M')

API nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *details)
{
    static nvmlProcessInfo_t all[MAX_FOUND];
    DEVICE_CALL(nvmlDeviceGetRunningProcessDetailList, device);
    nvmlReturn_t result;
    if (!details || details->mode > 3)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (details->version != STRUCT_VERSION(nvmlProcessDetailList_t, 1))
        return gate_leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    unsigned found = listed(&call, "CGM*"[details->mode], all);
    if (fits(found, &details->numProcArrayEntries, details->procArray, &result))
        for (unsigned i = 0; i < found; i++)
            details->procArray[i] = (nvmlProcessDetail_v1_t){
                all[i].pid, all[i].usedGpuMemory, all[i].gpuInstanceId, all[i].computeInstanceId,
                call.gpu->mig_mode ? NVML_VALUE_NOT_AVAILABLE : 0,
            };
    return gate_leave(result);
}

static int64_t sample_time(int64_t us)
{
    return us - us % PERIOD_US;
}

static unsigned use_at(const struct call *call, struct series series, int64_t us)
{
    uint64_t number;
    return series_at(call->state, series, us, &number) ? (unsigned)number : 0;
}

/* When one of the four values last took a new value at or before `us`; INT64_MIN = never. */
static int64_t last_change(const struct call *call, const struct process *process, int64_t us)
{
    const struct series all[] = {process->sm, process->mem, process->enc, process->dec};
    int64_t latest = INT64_MIN;
    for (unsigned i = 0; i < 4; i++)
        for (unsigned k = 1; k < all[i].count; k++) {
            int64_t at = call->state->origin_us + all[i].steps[k].at_us;
            if (at <= us && at > latest)
                latest = at;
        }
    return latest;
}

/* The newest sample later than `since_us` in which the process did something. */
static bool newest_use(const struct call *call, const struct process *process, int64_t since_us,
                       nvmlProcessUtilizationSample_t *sample)
{
    int64_t at = sample_time(call->now_us);
    while (at > since_us) {
        *sample = (nvmlProcessUtilizationSample_t){
            process->sample_pid, (uint64_t)at, use_at(call, process->sm, at), use_at(call, process->mem, at),
            use_at(call, process->enc, at), use_at(call, process->dec, at),
        };
        if (sample->smUtil || sample->memUtil || sample->encUtil || sample->decUtil)
            return true;
        int64_t changed = last_change(call, process, at);
        if (changed == INT64_MIN)
            return false;
        at = sample_time(changed - 1);
    }
    return false;
}

static unsigned used(const struct call *call, uint64_t last_seen, nvmlProcessUtilizationSample_t *samples)
{
    unsigned count, found = 0;
    int64_t since = call->now_us - BUFFERED_US;
    if (last_seen <= INT64_MAX && (int64_t)last_seen > since)
        since = (int64_t)last_seen;
    const struct process *processes = processes_of(call, &count);
    for (unsigned i = 0; i < count && found < MAX_FOUND; i++)
        if (newest_use(call, processes + i, since, samples + found))
            found++;
    for (unsigned i = 0; i < call->state->sample_count && found < MAX_FOUND; i++) {
        const struct sample *extra = call->state->samples + i;
        int64_t at = extra->timed ? call->state->origin_us + extra->at_us : sample_time(call->now_us);
        if (extra->gpu == call->gpu->index && (extra->timed || at > since))
            samples[found++] = (nvmlProcessUtilizationSample_t){
                extra->pid, (uint64_t)at, extra->sm, extra->mem, extra->enc, extra->dec,
            };
    }
    return found;
}

/* Common to both forms of the query: what to answer, and the samples if the answer is "success". */
static nvmlReturn_t utilization(const struct call *call, uint64_t last_seen, unsigned *count, const void *array,
                                const nvmlProcessUtilizationSample_t **samples)
{
    static nvmlProcessUtilizationSample_t all[MAX_FOUND];
    nvmlReturn_t result;
    if (call->mig || call->gpu->mig_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    unsigned found = used(call, last_seen, all);
    if (!array) {
        *count = found > SIZING_ANSWER ? found : SIZING_ANSWER;
        return NVML_ERROR_INSUFFICIENT_SIZE;
    }
    *samples = all;
    fits(found, count, array, &result);
    return found ? result : NVML_ERROR_NOT_FOUND;
}

API nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *array, unsigned *count,
                                    unsigned long long last_seen)
{
    DEVICE_CALL(nvmlDeviceGetProcessUtilization, device);
    const nvmlProcessUtilizationSample_t *samples;
    if (!count)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = utilization(&call, last_seen, count, array, &samples);
    if (result == NVML_SUCCESS)
        memcpy(array, samples, *count * sizeof *array);
    return gate_leave(result);
}

API nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device, nvmlProcessesUtilizationInfo_t *info)
{
    DEVICE_CALL(nvmlDeviceGetProcessesUtilizationInfo, device);
    const nvmlProcessUtilizationSample_t *s;
    if (!info)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (info->version != STRUCT_VERSION(nvmlProcessesUtilizationInfo_t, 1))
        return gate_leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t result =
        utilization(&call, info->lastSeenTimeStamp, &info->processSamplesCount, info->procUtilArray, &s);
    for (unsigned i = 0; result == NVML_SUCCESS && i < info->processSamplesCount; i++)
        info->procUtilArray[i] = (nvmlProcessUtilizationInfo_v1_t){
            s[i].timeStamp, s[i].pid, s[i].smUtil, s[i].memUtil, s[i].encUtil, s[i].decUtil, 0, 0,
        };
    return gate_leave(result);
}
