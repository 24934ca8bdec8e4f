/**
 * What to say of one kernel at one moment, with its types. What decides is the plain JavaScript of the kernel half, which
 * the widget in the notebook goes by too: so both say the same.
 */

import * as shared from '../../jupyter_gpu_guard/kernel/countdown.js';
import type { IKernel } from './wire';

/**
 * `ok`: nothing to do. `quiet`: the first lead has been reached. `notice`: a later one. `urgent`: the last, or under
 * way. `unknown`: nothing can be told.
 */
export type Level = 'ok' | 'quiet' | 'notice' | 'urgent' | 'unknown';

export type CountdownKey =
  | 'stale'
  | 'in_use'
  | 'unused'
  | 'shuts_down'
  | 'would_shut_down'
  | 'due'
  | 'stuck'
  | 'cannot_tell'
  | 'kept'
  | 'saving'
  | 'shutting_down'
  | 'shut_down'
  | 'failed'
  | 'observing'
  | 'holds_no_gpu';

export interface ICountdown {
  key: CountdownKey;
  level: Level;
  params: {
    remaining_seconds?: number;
    idle_seconds?: number | null;
    at?: string;
  };
}

/** At the moment `now` by the server's clock; `stale`: nothing has been heard of it for a while. */
export const countdown: (kernel: IKernel, now: Date, stale?: boolean) => ICountdown =
  shared.countdown;

export const isKept: (kernel: IKernel, now: Date) => boolean = shared.isKept;

/** Of a shutdown in so many seconds, when people are told so many seconds before. */
export const levelOf: (remaining: number, leads: readonly number[]) => Level = shared.levelOf;
