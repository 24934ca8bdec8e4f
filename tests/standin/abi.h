/* The part of NVML's binary interface that the stand-in speaks: return codes, constants, struct layouts.
 *
 * Sizes and offsets are those of the x86-64 library; the assertions keep a compiler from changing them, and
 * test_standin.py compares them with the layouts in nvidia-ml-py. */
#ifndef STANDIN_ABI_H
#define STANDIN_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int nvmlReturn_t;
typedef struct device_handle *nvmlDevice_t;

enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999,
};

#define NVML_VALUE_NOT_AVAILABLE UINT64_MAX
#define NO_INSTANCE UINT32_MAX

#define STRUCT_VERSION(type, version) ((unsigned)(sizeof(type) | ((version) << 24)))
#define CHECK_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " has another size in NVML")
#define CHECK_FIELD(type, field, offset) \
    _Static_assert(offsetof(type, field) == (offset), #type "." #field " lies elsewhere in NVML")

typedef struct {
    char busIdLegacy[16];
    uint32_t domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
CHECK_SIZE(nvmlPciInfo_t, 68);
CHECK_FIELD(nvmlPciInfo_t, busId, 36);

typedef struct {
    uint64_t total, free, used;
} nvmlMemory_t;
CHECK_SIZE(nvmlMemory_t, 24);

typedef struct {
    uint32_t version;
    uint64_t total, reserved, free, used;
} nvmlMemory_v2_t;
CHECK_SIZE(nvmlMemory_v2_t, 40);
CHECK_FIELD(nvmlMemory_v2_t, total, 8);
CHECK_FIELD(nvmlMemory_v2_t, used, 32);

typedef struct {
    uint64_t bar1Total, bar1Free, bar1Used;
} nvmlBAR1Memory_t;
CHECK_SIZE(nvmlBAR1Memory_t, 24);

typedef struct {
    uint32_t gpu, memory;
} nvmlUtilization_t;
CHECK_SIZE(nvmlUtilization_t, 8);

typedef struct {
    uint32_t pid;
    uint64_t usedGpuMemory;
} nvmlProcessInfo_v1_t;
CHECK_SIZE(nvmlProcessInfo_v1_t, 16);
CHECK_FIELD(nvmlProcessInfo_v1_t, usedGpuMemory, 8);

typedef struct {
    uint32_t pid;
    uint64_t usedGpuMemory;
    uint32_t gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
CHECK_SIZE(nvmlProcessInfo_t, 24);
CHECK_FIELD(nvmlProcessInfo_t, gpuInstanceId, 16);
CHECK_FIELD(nvmlProcessInfo_t, computeInstanceId, 20);

typedef struct {
    uint32_t pid;
    uint64_t usedGpuMemory;
    uint32_t gpuInstanceId, computeInstanceId;
    uint64_t usedGpuCcProtectedMemory;
} nvmlProcessDetail_v1_t;
CHECK_SIZE(nvmlProcessDetail_v1_t, 32);
CHECK_FIELD(nvmlProcessDetail_v1_t, usedGpuCcProtectedMemory, 24);

typedef struct {
    uint32_t version, mode, numProcArrayEntries;
    nvmlProcessDetail_v1_t *procArray;
} nvmlProcessDetailList_t;
CHECK_SIZE(nvmlProcessDetailList_t, 24);
CHECK_FIELD(nvmlProcessDetailList_t, procArray, 16);

typedef struct {
    uint32_t pid;
    uint64_t timeStamp;
    uint32_t smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
CHECK_SIZE(nvmlProcessUtilizationSample_t, 32);
CHECK_FIELD(nvmlProcessUtilizationSample_t, timeStamp, 8);
CHECK_FIELD(nvmlProcessUtilizationSample_t, decUtil, 28);

typedef struct {
    uint64_t timeStamp;
    uint32_t pid, smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;
CHECK_SIZE(nvmlProcessUtilizationInfo_v1_t, 40);
CHECK_FIELD(nvmlProcessUtilizationInfo_v1_t, pid, 8);
CHECK_FIELD(nvmlProcessUtilizationInfo_v1_t, ofaUtil, 32);

typedef struct {
    uint32_t version, processSamplesCount;
    uint64_t lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_t;
CHECK_SIZE(nvmlProcessesUtilizationInfo_t, 24);
CHECK_FIELD(nvmlProcessesUtilizationInfo_t, procUtilArray, 16);

typedef struct {
    uint32_t version, sensorType;
    int32_t temperature;
} nvmlTemperature_v1_t;
CHECK_SIZE(nvmlTemperature_v1_t, 12);

typedef struct {
    uint32_t multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount;
    uint32_t sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    uint64_t memorySizeMB;
} nvmlDeviceAttributes_t;
CHECK_SIZE(nvmlDeviceAttributes_t, 40);
CHECK_FIELD(nvmlDeviceAttributes_t, memorySizeMB, 32);

typedef struct {
    uint64_t protectedMemSizeKib, unprotectedMemSizeKib;
} nvmlConfComputeMemSizeInfo_t;
CHECK_SIZE(nvmlConfComputeMemSizeInfo_t, 16);

#endif
