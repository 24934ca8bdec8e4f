/* The processes of a GPU, from the state file and from the table together. */
#ifndef STANDIN_PROCESSES_H
#define STANDIN_PROCESSES_H

#include "gate.h"

/* All processes of the GPU (of the MIG device, on its handle); *count of them, valid until gate_leave(). */
const struct process *processes_of(const struct call *call, unsigned *count);

#endif
