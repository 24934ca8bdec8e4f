/**
 * What to say of one kernel at one moment. A function of its arguments: no clock, no translation, no page.
 */

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

/** Shutdowns that come whatever the verdict says. */
const REGARDLESS = new Set(['max_runtime', 'asked_by_user']);

export function countdown(kernel: IKernel, now: Date, stale = false): ICountdown {
  if (stale) {
    return say('stale', 'unknown');
  }
  const under_way = underWay(kernel);
  if (under_way) {
    return under_way;
  }
  const foreign = endedByOthers(kernel);
  if (kernel.mode === 'observe' && !foreign) {
    return say('observing', 'ok');
  }
  if (kernel.verdict === 'unknown' && !foreign && !comesRegardless(kernel)) {
    return say('cannot_tell', 'unknown');
  }
  return counting(kernel, now, foreign) ?? resting(kernel, now);
}

function underWay(kernel: IKernel): ICountdown | null {
  switch (kernel.state) {
    case 'saving':
      return say('saving', 'urgent');
    case 'culling':
      return say('shutting_down', 'urgent');
    case 'culled':
      return say('shut_down', 'ok');
    case 'failed':
      return say('failed', 'notice');
    default:
      return null;
  }
}

/** The countdown, where there is one and it is what matters now. */
function counting(kernel: IKernel, now: Date, foreign: boolean): ICountdown | null {
  const wouldBe = kernel.mode === 'warn' ? kernel.would_act : null;
  const at = kernel.deadline ?? wouldBe;
  if (!at) {
    return null;
  }
  const remaining = (Date.parse(at) - now.getTime()) / 1000;
  const level = levelOf(remaining, kernel.policy.warn_before_seconds);
  const counts = kernel.verdict === 'idle' || kernel.verdict === 'stalled';
  if (level === 'ok' && (!counts || isKept(kernel, now))) {
    return null;
  }
  const params = {
    remaining_seconds: Math.max(0, remaining),
    idle_seconds: kernel.idle_seconds,
    at
  };
  if (kernel.mode === 'warn' && !foreign) {
    return say('would_shut_down', level, params);
  }
  return say(remaining > 0 ? 'shuts_down' : 'due', level, params);
}

function resting(kernel: IKernel, now: Date): ICountdown {
  if (isKept(kernel, now)) {
    return say('kept', 'ok', { at: kernel.keep_alive_until ?? undefined });
  }
  if (!kernel.deadline && kernel.deadline_reason?.code === 'out_of_scope') {
    return say('holds_no_gpu', 'ok');
  }
  switch (kernel.verdict) {
    case 'stalled':
      return say('stuck', 'notice');
    case 'idle':
      return say('unused', 'ok', { idle_seconds: kernel.idle_seconds });
    case 'unknown':
      return say('cannot_tell', 'unknown');
    default:
      return say('in_use', 'ok');
  }
}

/** With a single lead that lead is urgent: there is no later one to be so. */
export function levelOf(remaining: number, leads: readonly number[]): Level {
  const reached = leads.filter(lead => remaining <= lead).length;
  if (remaining <= 0 || (reached > 0 && reached === leads.length)) {
    return 'urgent';
  }
  return reached === 0 ? 'ok' : reached === 1 ? 'quiet' : 'notice';
}

/** Another ender than the guard, such as Jupyter's own idle shutdown, which no mode of ours holds back. */
export function endedByOthers(kernel: IKernel): boolean {
  return Boolean(kernel.deadline && kernel.deadline_source && kernel.deadline_source !== 'guard');
}

function comesRegardless(kernel: IKernel): boolean {
  return Boolean(kernel.deadline && REGARDLESS.has(kernel.deadline_reason?.code ?? ''));
}

export function isKept(kernel: IKernel, now: Date): boolean {
  return Boolean(kernel.keep_alive_until && Date.parse(kernel.keep_alive_until) > now.getTime());
}

function say(key: CountdownKey, level: Level, params: ICountdown['params'] = {}): ICountdown {
  return { key, level, params };
}
