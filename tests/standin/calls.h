/* Which functions the library has, and how often each was called.
 *
 * Counts are kept in a shared file, so that a test can read how many driver calls any process made. */
#ifndef STANDIN_CALLS_H
#define STANDIN_CALLS_H

#define FUNCTIONS(X)                                                                                           \
    X(nvmlInit) X(nvmlInit_v2) X(nvmlInitWithFlags) X(nvmlShutdown)                                            \
    X(nvmlSystemGetDriverVersion) X(nvmlSystemGetNVMLVersion)                                                  \
    X(nvmlSystemGetCudaDriverVersion) X(nvmlSystemGetCudaDriverVersion_v2) X(nvmlSystemGetProcessName)         \
    X(nvmlDeviceGetCount) X(nvmlDeviceGetCount_v2)                                                             \
    X(nvmlDeviceGetHandleByIndex) X(nvmlDeviceGetHandleByIndex_v2) X(nvmlDeviceGetHandleByUUID)                \
    X(nvmlDeviceGetHandleByPciBusId_v2) X(nvmlDeviceGetHandleBySerial)                                         \
    X(nvmlDeviceGetName) X(nvmlDeviceGetUUID) X(nvmlDeviceGetSerial) X(nvmlDeviceGetIndex)                     \
    X(nvmlDeviceGetMinorNumber) X(nvmlDeviceGetPciInfo_v2) X(nvmlDeviceGetPciInfo_v3)                          \
    X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetMemoryInfo_v2) X(nvmlDeviceGetBAR1MemoryInfo)                    \
    X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetEncoderUtilization) X(nvmlDeviceGetDecoderUtilization)     \
    X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetEnforcedPowerLimit) X(nvmlDeviceGetPowerManagementLimit)         \
    X(nvmlDeviceGetTotalEnergyConsumption) X(nvmlDeviceGetTemperature) X(nvmlDeviceGetTemperatureV)            \
    X(nvmlDeviceGetFanSpeed) X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetMaxClockInfo)                            \
    X(nvmlDeviceGetPcieThroughput) X(nvmlDeviceGetPersistenceMode) X(nvmlDeviceGetComputeMode)                 \
    X(nvmlDeviceGetPerformanceState) X(nvmlDeviceGetDisplayActive) X(nvmlDeviceGetDisplayMode)                 \
    X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetTotalEccErrors) X(nvmlDeviceGetDriverModel_v2)        \
    X(nvmlDeviceGetConfComputeMemSizeInfo)                                                                     \
    X(nvmlDeviceGetComputeRunningProcesses) X(nvmlDeviceGetComputeRunningProcesses_v2)                         \
    X(nvmlDeviceGetComputeRunningProcesses_v3)                                                                 \
    X(nvmlDeviceGetGraphicsRunningProcesses) X(nvmlDeviceGetGraphicsRunningProcesses_v2)                       \
    X(nvmlDeviceGetGraphicsRunningProcesses_v3)                                                                \
    X(nvmlDeviceGetMPSComputeRunningProcesses) X(nvmlDeviceGetMPSComputeRunningProcesses_v2)                   \
    X(nvmlDeviceGetMPSComputeRunningProcesses_v3)                                                              \
    X(nvmlDeviceGetRunningProcessDetailList) X(nvmlDeviceGetProcessUtilization)                                \
    X(nvmlDeviceGetProcessesUtilizationInfo)                                                                   \
    X(nvmlDeviceGetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) X(nvmlDeviceGetMigDeviceHandleByIndex)           \
    X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) X(nvmlDeviceIsMigDeviceHandle)                             \
    X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) X(nvmlDeviceGetAttributes_v2)

#define AS_ENUM(name) FN_##name,
enum function { FUNCTIONS(AS_ENUM) FUNCTION_COUNT };
#undef AS_ENUM

const char *function_name(enum function function);

/* Counts into another file from now on, if `path` differs from the one in use; "" = nowhere. */
void calls_use(const char *path);

void calls_count(enum function function);
void calls_init_held(int change);
void calls_shutdown_while_inside(void);

#endif
