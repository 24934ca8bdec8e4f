/* Entry points: the library itself, handles, identity, MIG. */
#define _GNU_SOURCE
#include "gate.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static nvmlReturn_t copy_text(const char *text, char *target, unsigned length)
{
    if (!target)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(target, text);
    return NVML_SUCCESS;
}

static nvmlReturn_t put(unsigned *target, unsigned number)
{
    if (!target)
        return NVML_ERROR_INVALID_ARGUMENT;
    *target = number;
    return NVML_SUCCESS;
}

API nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return gate_init(FN_nvmlInitWithFlags);
}

API nvmlInit_v2(void)
{
    return gate_init(FN_nvmlInit_v2);
}

API nvmlInit(void)
{
    return gate_init(FN_nvmlInit);
}

API nvmlShutdown(void)
{
    return gate_shutdown();
}

__attribute__((visibility("default"))) const char *nvmlErrorString(nvmlReturn_t result)
{
    static const char *const TEXTS[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires restart", "The operating system has blocked the request.",
        "RM has detected an NVML/RM version mismatch.", "In use by another client", "Insufficient Memory", "No data",
        "VGPU ECC not supported", "Insufficient resources", "Frequency not supported", "Argument version mismatch",
        "Deprecated", "Not ready", "GPU not found", "Invalid state", "Reset type not supported",
    };
    if (result >= 0 && result < (int)(sizeof TEXTS / sizeof *TEXTS))
        return TEXTS[result];
    return "Unknown Error";
}

API nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    SYSTEM_CALL(nvmlSystemGetDriverVersion);
    return gate_leave(copy_text(call.state->driver, version, length));
}

API nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    SYSTEM_CALL(nvmlSystemGetNVMLVersion);
    return gate_leave(copy_text(call.state->nvml, version, length));
}

API nvmlSystemGetCudaDriverVersion(int *version)
{
    SYSTEM_CALL(nvmlSystemGetCudaDriverVersion);
    return gate_leave(put((unsigned *)version, call.state->cuda));
}

API nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    SYSTEM_CALL(nvmlSystemGetCudaDriverVersion_v2);
    return gate_leave(put((unsigned *)version, call.state->cuda));
}

API nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length)
{
    SYSTEM_CALL(nvmlSystemGetProcessName);
    char path[64], command[1024] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return gate_leave(NVML_ERROR_NOT_FOUND);
    /* The arguments end in zero bytes, so the text is the program alone. */
    command[fread(command, 1, sizeof command - 1, file)] = '\0';
    fclose(file);
    return gate_leave(copy_text(command, name, length));
}

API nvmlDeviceGetCount_v2(unsigned *count)
{
    SYSTEM_CALL(nvmlDeviceGetCount_v2);
    return gate_leave(put(count, state_gpu_count(call.state)));
}

API nvmlDeviceGetCount(unsigned *count)
{
    SYSTEM_CALL(nvmlDeviceGetCount);
    return gate_leave(put(count, state_gpu_count(call.state)));
}

static nvmlReturn_t by_index(const struct state *state, const void *wanted, const struct gpu **gpu,
                             const struct mig **mig)
{
    unsigned index = *(const unsigned *)wanted;
    *mig = NULL;
    if (index >= state_gpu_count(state))
        return NVML_ERROR_INVALID_ARGUMENT;
    *gpu = state->gpus + index;
    return (*gpu)->present ? NVML_SUCCESS : NVML_ERROR_GPU_IS_LOST;
}

static nvmlReturn_t by_uuid(const struct state *state, const void *wanted, const struct gpu **gpu,
                            const struct mig **mig)
{
    for (const struct gpu *g = state->gpus; g < state->gpus + MAX_GPUS; g++) {
        if (g->present && !strcmp(g->uuid, wanted)) {
            *gpu = g;
            return NVML_SUCCESS;
        }
        for (const struct mig *m = g->migs; g->present && m < g->migs + MAX_MIG; m++) {
            if (m->present && !strcmp(m->uuid, wanted)) {
                *gpu = g;
                *mig = m;
                return NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_pci(const struct state *state, const void *wanted, const struct gpu **gpu,
                           const struct mig **mig)
{
    *mig = NULL;
    for (const struct gpu *g = state->gpus; g < state->gpus + MAX_GPUS; g++) {
        if (g->present && !strcasecmp(g->pci, wanted)) {
            *gpu = g;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_serial(const struct state *state, const void *wanted, const struct gpu **gpu,
                              const struct mig **mig)
{
    *mig = NULL;
    for (const struct gpu *g = state->gpus; g < state->gpus + MAX_GPUS; g++) {
        if (g->present && *g->serial && !strcmp(g->serial, wanted)) {
            *gpu = g;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t hand_out(enum function function, gate_finder find, const void *wanted, nvmlDevice_t *device)
{
    struct call call;
    if (!wanted || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    nvmlReturn_t entered = gate_enter_found(&call, function, find, wanted);
    if (entered != NVML_SUCCESS)
        return entered;
    *device = call.mig ? mig_handle(call.mig) : gpu_handle(call.gpu);
    return gate_leave(NVML_SUCCESS);
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    return hand_out(FN_nvmlDeviceGetHandleByIndex_v2, by_index, &index, device);
}

API nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return hand_out(FN_nvmlDeviceGetHandleByIndex, by_index, &index, device);
}

API nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    return hand_out(FN_nvmlDeviceGetHandleByUUID, by_uuid, uuid, device);
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *pci, nvmlDevice_t *device)
{
    return hand_out(FN_nvmlDeviceGetHandleByPciBusId_v2, by_pci, pci, device);
}

API nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
    return hand_out(FN_nvmlDeviceGetHandleBySerial, by_serial, serial, device);
}

API nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    DEVICE_CALL(nvmlDeviceGetName, device);
    if (!call.mig)
        return gate_leave(copy_text(call.gpu->name, name, length));
    char text[160];
    snprintf(text, sizeof text, "%s MIG %ug.%ugb", call.gpu->name, call.mig->slices,
             (unsigned)((call.mig->memory + (1u << 29)) >> 30));
    return gate_leave(copy_text(text, name, length));
}

API nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    DEVICE_CALL(nvmlDeviceGetUUID, device);
    return gate_leave(copy_text(call.mig ? call.mig->uuid : call.gpu->uuid, uuid, length));
}

API nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    DEVICE_CALL(nvmlDeviceGetSerial, device);
    if (call.mig || !*call.gpu->serial)
        return gate_leave(NVML_ERROR_NOT_SUPPORTED);
    return gate_leave(copy_text(call.gpu->serial, serial, length));
}

API nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    DEVICE_CALL(nvmlDeviceGetIndex, device);
    return gate_leave(put(index, call.mig ? call.mig->index : call.gpu->index));
}

API nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor)
{
    DEVICE_CALL(nvmlDeviceGetMinorNumber, device);
    return gate_leave(call.mig ? NVML_ERROR_NOT_SUPPORTED : put(minor, call.gpu->minor));
}

static nvmlReturn_t pci_info(const struct call *call, nvmlPciInfo_t *pci)
{
    unsigned domain, bus, device;
    if (!pci)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (call->mig)
        return NVML_ERROR_NOT_SUPPORTED;
    if (sscanf(call->gpu->pci, "%x:%x:%x", &domain, &bus, &device) != 3)
        return NVML_ERROR_UNKNOWN;
    *pci = (nvmlPciInfo_t){.domain = domain, .bus = bus, .device = device};
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", domain & 0xFFFF, bus & 0xFF,
             device & 0xFF);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", domain, bus & 0xFF, device & 0xFF);
    return NVML_SUCCESS;
}

API nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE_CALL(nvmlDeviceGetPciInfo_v3, device);
    return gate_leave(pci_info(&call, pci));
}

API nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE_CALL(nvmlDeviceGetPciInfo_v2, device);
    return gate_leave(pci_info(&call, pci));
}

API nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *mode, unsigned *pending)
{
    DEVICE_CALL(nvmlDeviceGetMigMode, device);
    if (call.mig)
        return gate_leave(NVML_ERROR_NOT_SUPPORTED);
    nvmlReturn_t result = put(mode, call.gpu->mig_mode);
    return gate_leave(result == NVML_SUCCESS ? put(pending, call.gpu->mig_mode) : result);
}

API nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned *count)
{
    DEVICE_CALL(nvmlDeviceGetMaxMigDeviceCount, device);
    return gate_leave(put(count, call.gpu->mig_mode && !call.mig ? MAX_MIG : 0));
}

API nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index, nvmlDevice_t *mig)
{
    DEVICE_CALL(nvmlDeviceGetMigDeviceHandleByIndex, device);
    if (call.mig || !mig || index >= MAX_MIG)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!call.gpu->mig_mode || !call.gpu->migs[index].present)
        return gate_leave(NVML_ERROR_NOT_FOUND);
    *mig = mig_handle(call.gpu->migs + index);
    return gate_leave(NVML_SUCCESS);
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    DEVICE_CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, mig);
    if (!call.mig || !device)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    *device = gpu_handle(call.gpu);
    return gate_leave(NVML_SUCCESS);
}

API nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned *is_mig)
{
    DEVICE_CALL(nvmlDeviceIsMigDeviceHandle, device);
    return gate_leave(put(is_mig, call.mig != NULL));
}

API nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    DEVICE_CALL(nvmlDeviceGetGpuInstanceId, device);
    return gate_leave(call.mig ? put(id, call.mig->gi) : NVML_ERROR_NOT_SUPPORTED);
}

API nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    DEVICE_CALL(nvmlDeviceGetComputeInstanceId, device);
    return gate_leave(call.mig ? put(id, call.mig->ci) : NVML_ERROR_NOT_SUPPORTED);
}

API nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    DEVICE_CALL(nvmlDeviceGetAttributes_v2, device);
    if (!attributes)
        return gate_leave(NVML_ERROR_INVALID_ARGUMENT);
    if (!call.mig)
        return gate_leave(NVML_ERROR_NOT_SUPPORTED);
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = 16 * call.mig->slices,
        .sharedCopyEngineCount = call.mig->slices,
        .gpuInstanceSliceCount = call.mig->slices,
        .computeInstanceSliceCount = call.mig->slices,
        .memorySizeMB = call.mig->memory >> 20,
    };
    return gate_leave(NVML_SUCCESS);
}
