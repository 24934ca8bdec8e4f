/* What every call passes on its way in and out: counting, the mutex, the state in force, "not initialised", rules.
 *
 * gate_enter*() return with the mutex held if, and only if, they return NVML_SUCCESS; gate_leave() releases it. */
#ifndef STANDIN_GATE_H
#define STANDIN_GATE_H

#include "calls.h"
#include "state.h"

struct call {
    const struct state *state;
    const struct gpu *gpu;
    const struct mig *mig; /* NULL on the handle of a whole GPU */
    int64_t now_us;
};

/* Finds the GPU or MIG device that a call by index, UUID, PCI id or serial means; NULL in both if there is none. */
typedef nvmlReturn_t (*gate_finder)(const struct state *state, const void *wanted, const struct gpu **gpu,
                                    const struct mig **mig);

nvmlReturn_t gate_init(enum function function);
nvmlReturn_t gate_shutdown(void);
nvmlReturn_t gate_enter_system(struct call *call, enum function function);
nvmlReturn_t gate_enter_device(struct call *call, enum function function, nvmlDevice_t device);
nvmlReturn_t gate_enter_found(struct call *call, enum function function, gate_finder find, const void *wanted);
nvmlReturn_t gate_leave(nvmlReturn_t result);

nvmlDevice_t gpu_handle(const struct gpu *gpu);
nvmlDevice_t mig_handle(const struct mig *mig);

#define API __attribute__((visibility("default"))) nvmlReturn_t

/* Opens the body of an entry point: declares `call`, or returns the code with which the call failed. */
#define SYSTEM_CALL(name)                                             \
    struct call call;                                                 \
    nvmlReturn_t entered = gate_enter_system(&call, FN_##name);       \
    if (entered != NVML_SUCCESS)                                      \
    return entered
#define DEVICE_CALL(name, device)                                     \
    struct call call;                                                 \
    nvmlReturn_t entered = gate_enter_device(&call, FN_##name, device); \
    if (entered != NVML_SUCCESS)                                      \
    return entered

#endif
