/* The table of real processes that pose as GPU processes (written by context.py).
 *
 * A process is in the list while it holds a POSIX record lock on the byte whose number is that of its slot. The
 * kernel drops the lock when the process ends in whatever way, a zombie included, and a fork doesn't inherit it, so
 * no process has to be asked whether it still lives. */
#ifndef STANDIN_TABLE_H
#define STANDIN_TABLE_H

#include "state.h"

/* Reads another table from now on, if `path` differs from the one in use; "" = none. */
void table_use(const char *path);

/* Appends the live processes to `processes`, which holds `count` of `capacity`; returns the new count. */
unsigned table_append(const struct state *state, struct process *processes, unsigned count, unsigned capacity);

#endif
