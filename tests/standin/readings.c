/* Entry points: readings of a whole GPU. On a MIG handle only the memory can be read. */
#define _GNU_SOURCE
#include "processes.h"

#include <string.h>

/* The value of a series that the state file must give; "not supported" on a MIG handle. */
static nvmlReturn_t read_series(const struct call *call, struct series series, unsigned *target)
{
    uint64_t number;
    if (!target)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (call->mig || !series_at(call->state, series, call->now_us, &number))
        return NVML_ERROR_NOT_SUPPORTED;
    *target = (unsigned)number;
    return NVML_SUCCESS;
}

static uint64_t or_zero(const struct call *call, struct series series)
{
    uint64_t number;
    return series_at(call->state, series, call->now_us, &number) ? number : 0;
}

static uint64_t process_memory(const struct call *call)
{
    unsigned count;
    uint64_t sum = 0;
    const struct process *processes = processes_of(call, &count);
    for (unsigned i = 0; i < count; i++)
        sum += or_zero(call, processes[i].memory);
    return sum;
}

static unsigned process_use(const struct call *call, size_t member)
{
    unsigned count;
    uint64_t sum = 0;
    const struct process *processes = processes_of(call, &count);
    for (unsigned i = 0; i < count; i++)
        sum += or_zero(call, *(const struct series *)((const char *)(processes + i) + member));
    return sum < 100 ? (unsigned)sum : 100;
}

/* Where the state file says nothing about the device, its use follows from that of its processes. */
static nvmlReturn_t use_of(const struct call *call, struct series series, size_t member, unsigned *target)
{
    if (series.count)
        return read_series(call, series, target);
    *target = process_use(call, member);
    return NVML_SUCCESS;
}

/* `used` is without the driver's own part, as in the second version of the struct. */
static nvmlReturn_t memory_of(const struct call *call, nvmlMemory_v2_t *memory)
{
    const struct gpu *gpu = call->gpu;
    uint64_t total = call->mig ? call->mig->memory : 0, used;
    if (!call->mig && !series_at(call->state, gpu->memory_total, call->now_us, &total))
        return NVML_ERROR_NOT_SUPPORTED;
    uint64_t reserved = call->mig ? 0 : or_zero(call, gpu->memory_reserved);
    if (call->mig || !gpu->memory_used.count)
        used = process_memory(call) + (call->mig ? 0 : or_zero(call, gpu->memory_base));
    else if (!series_at(call->state, gpu->memory_used, call->now_us, &used))
        return NVML_ERROR_NOT_SUPPORTED;
    memory->total = total;
    memory->reserved = reserved;
    memory->used = used;
    memory->free = used + reserved < total ? total - used - reserved : 0;
    return NVML_SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    DEVICE_CALL(nvmlDeviceGetMemoryInfo_v2, device);
    if (!memory)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (memory->version != STRUCT_VERSION(nvmlMemory_v2_t, 2))
        return gate_leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return gate_leave(memory_of(&call, memory));
}

/* The first version counts the driver's own part as used (gpustat#141). */
API nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    DEVICE_CALL(nvmlDeviceGetMemoryInfo, device);
    nvmlMemory_v2_t newer;
    if (!memory)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = memory_of(&call, &newer);
    if (result == NVML_SUCCESS)
        *memory = (nvmlMemory_t){newer.total, newer.free, newer.used + newer.reserved};
    return gate_leave(result);
}

API nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory)
{
    DEVICE_CALL(nvmlDeviceGetBAR1MemoryInfo, device);
    nvmlMemory_v2_t whole;
    if (!memory)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = memory_of(&call, &whole);
    if (result == NVML_SUCCESS)
        *memory = (nvmlBAR1Memory_t){whole.total, whole.total, 0};
    return gate_leave(result);
}

API nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, nvmlConfComputeMemSizeInfo_t *sizes)
{
    DEVICE_CALL(nvmlDeviceGetConfComputeMemSizeInfo, device);
    nvmlMemory_v2_t whole;
    if (!sizes)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    nvmlReturn_t result = memory_of(&call, &whole);
    if (result == NVML_SUCCESS)
        *sizes = (nvmlConfComputeMemSizeInfo_t){0, whole.total >> 10};
    return gate_leave(result);
}

API nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    DEVICE_CALL(nvmlDeviceGetUtilizationRates, device);
    if (!utilization)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (call.mig || call.gpu->mig_mode)
        return gate_leave(NVML_ERROR_NOT_SUPPORTED);
    nvmlReturn_t result =
        use_of(&call, call.gpu->utilization, offsetof(struct process, sm), &utilization->gpu);
    if (result == NVML_SUCCESS)
        result = use_of(&call, call.gpu->memory_utilization, offsetof(struct process, mem), &utilization->memory);
    return gate_leave(result);
}

static nvmlReturn_t engine_use(const struct call *call, struct series series, size_t member, unsigned *utilization,
                               unsigned *period_us)
{
    if (!utilization || !period_us)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (call->mig || call->gpu->mig_mode)
        return NVML_ERROR_NOT_SUPPORTED;
    *period_us = 166667;
    return use_of(call, series, member, utilization);
}

API nvmlDeviceGetEncoderUtilization(nvmlDevice_t device, unsigned *utilization, unsigned *period_us)
{
    DEVICE_CALL(nvmlDeviceGetEncoderUtilization, device);
    size_t member = offsetof(struct process, enc);
    return gate_leave(engine_use(&call, call.gpu->encoder, member, utilization, period_us));
}

API nvmlDeviceGetDecoderUtilization(nvmlDevice_t device, unsigned *utilization, unsigned *period_us)
{
    DEVICE_CALL(nvmlDeviceGetDecoderUtilization, device);
    size_t member = offsetof(struct process, dec);
    return gate_leave(engine_use(&call, call.gpu->decoder, member, utilization, period_us));
}

API nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    DEVICE_CALL(nvmlDeviceGetPowerUsage, device);
    return gate_leave(read_series(&call, call.gpu->power, milliwatts));
}

API nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    DEVICE_CALL(nvmlDeviceGetEnforcedPowerLimit, device);
    return gate_leave(read_series(&call, call.gpu->power_limit, milliwatts));
}

API nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    DEVICE_CALL(nvmlDeviceGetPowerManagementLimit, device);
    return gate_leave(read_series(&call, call.gpu->power_limit, milliwatts));
}

API nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *millijoules)
{
    DEVICE_CALL(nvmlDeviceGetTotalEnergyConsumption, device);
    uint64_t number;
    if (!millijoules)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (call.mig || !series_at(call.state, call.gpu->energy, call.now_us, &number))
        return gate_leave(NVML_ERROR_NOT_SUPPORTED);
    *millijoules = number;
    return gate_leave(NVML_SUCCESS);
}

API nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius)
{
    DEVICE_CALL(nvmlDeviceGetTemperature, device);
    return gate_leave(sensor ? NVML_ERROR_INVALID_ARGUMENT : read_series(&call, call.gpu->temperature, celsius));
}

API nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    DEVICE_CALL(nvmlDeviceGetTemperatureV, device);
    unsigned celsius;
    if (!temperature || temperature->sensorType)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (temperature->version != STRUCT_VERSION(nvmlTemperature_v1_t, 1))
        return gate_leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    nvmlReturn_t result = read_series(&call, call.gpu->temperature, &celsius);
    if (result == NVML_SUCCESS)
        temperature->temperature = (int32_t)celsius;
    return gate_leave(result);
}

API nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent)
{
    DEVICE_CALL(nvmlDeviceGetFanSpeed, device);
    return gate_leave(read_series(&call, call.gpu->fan, percent));
}

API nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *megahertz)
{
    DEVICE_CALL(nvmlDeviceGetClockInfo, device);
    (void)type;
    return gate_leave(read_series(&call, call.gpu->clock, megahertz));
}

API nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *megahertz)
{
    DEVICE_CALL(nvmlDeviceGetMaxClockInfo, device);
    (void)type;
    return gate_leave(read_series(&call, call.gpu->clock, megahertz));
}

API nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *pstate)
{
    DEVICE_CALL(nvmlDeviceGetPerformanceState, device);
    return gate_leave(read_series(&call, call.gpu->performance_state, (unsigned *)pstate));
}

/* Facts that nobody attributes to a kernel; the same for every whole GPU. */
static nvmlReturn_t fixed(const struct call *call, int number, int *target)
{
    if (!target)
        return NVML_ERROR_INVALID_ARGUMENT;
    *target = number;
    return call->mig ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

API nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned *kilobytes)
{
    DEVICE_CALL(nvmlDeviceGetPcieThroughput, device);
    (void)counter;
    return gate_leave(fixed(&call, 0, (int *)kilobytes));
}

API nvmlDeviceGetPersistenceMode(nvmlDevice_t device, int *mode)
{
    DEVICE_CALL(nvmlDeviceGetPersistenceMode, device);
    return gate_leave(fixed(&call, 1, mode));
}

API nvmlDeviceGetComputeMode(nvmlDevice_t device, int *mode)
{
    DEVICE_CALL(nvmlDeviceGetComputeMode, device);
    return gate_leave(fixed(&call, 0, mode));
}

API nvmlDeviceGetDisplayActive(nvmlDevice_t device, int *active)
{
    DEVICE_CALL(nvmlDeviceGetDisplayActive, device);
    return gate_leave(fixed(&call, 0, active));
}

API nvmlDeviceGetDisplayMode(nvmlDevice_t device, int *mode)
{
    DEVICE_CALL(nvmlDeviceGetDisplayMode, device);
    return gate_leave(fixed(&call, 0, mode));
}

API nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE_CALL(nvmlDeviceGetCudaComputeCapability, device);
    if (!major || !minor)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    *major = (int)call.gpu->cuda_major;
    *minor = (int)call.gpu->cuda_minor;
    return gate_leave(NVML_SUCCESS);
}

API nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int error, int counter, unsigned long long *errors)
{
    DEVICE_CALL(nvmlDeviceGetTotalEccErrors, device);
    (void)error, (void)counter;
    if (!errors)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    *errors = 0;
    return gate_leave(call.mig ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS);
}

/* Driver models exist on Windows only. */
API nvmlDeviceGetDriverModel_v2(nvmlDevice_t device, int *now, int *pending)
{
    DEVICE_CALL(nvmlDeviceGetDriverModel_v2, device);
    return gate_leave(now && pending ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_INVALID_ARGUMENT);
}
