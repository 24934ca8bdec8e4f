/**
 * Sentences: one for every reason code, one for every state of a countdown, in the user's language.
 *
 * The codes are the closed list of the server. A code that a newer server adds is shown with the English text that
 * came with it.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as amounts from './amounts';
import type { ICountdown } from './countdown';
import type { IReason, Param } from './wire';

/** The params of one reason, each as people read it. */
class Params {
  constructor(
    private readonly values: Record<string, Param>,
    readonly t: TranslationBundle,
    private readonly now: Date
  ) {}

  /** A length of time. */
  span(name: string): string {
    return amounts.duration(this.values[name], this.t);
  }

  /** A moment. */
  time(name: string): string {
    return amounts.clock(this.values[name], this.now);
  }

  share(name: string): string {
    return amounts.percent(this.values[name], this.t);
  }

  size(name: string): string {
    return amounts.bytes(this.values[name], this.t);
  }

  /** A number with two decimals. */
  number(name: string): string {
    const value = this.values[name];
    return typeof value === 'number' ? value.toFixed(2) : '?';
  }

  has(name: string): boolean {
    return Boolean(this.values[name]);
  }

  /** How many, for plural forms. */
  count(name: string): number {
    const value = this.values[name];
    return typeof value === 'number' ? value : 0;
  }

  /** A name or a path, as it is. */
  plain(name: string): string {
    return String(this.values[name] ?? '?');
  }
}

type Sentence = (p: Params) => string;

const ACTIVE: Record<string, Sentence> = {
  executing: p => p.t.__('A cell has been running since %1.', p.time('since')),
  executed: p => p.t.__('A cell ran until %1.', p.time('at')),
  printing: p => p.t.__('Code that a cell started printed something at %1.', p.time('at')),
  gpu_in_use: p => p.t.__('Its processes used the GPU: %1 at %2.', p.share('ratio'), p.time('at')),
  codec_in_use: p =>
    p.t.__('Its processes used the video unit: %1 at %2.', p.share('ratio'), p.time('at')),
  gpu_memory_changed: p => p.t.__('Its GPU memory changed at %1.', p.time('at')),
  cpu_in_use: p =>
    p.t.__('It used %1 CPU cores in the minute before %2.', p.number('cores'), p.time('at')),
  io_in_use: p =>
    p.t.__(
      'It read and wrote %1 a second in the minute before %2.',
      p.size('bytes_per_second'),
      p.time('at')
    ),
  present: p => p.t.__('Somebody was at the notebook at %1.', p.time('at')),
  just_started: p => p.t.__('The kernel started at %1.', p.time('at')),
  device_in_use_owner_unclear: p =>
    p.t.__('GPU %1 is in use (%2), perhaps by this kernel.', p.plain('uuid'), p.share('ratio'))
};

const IDLE: Record<string, Sentence> = {
  idle: p =>
    p.t.__('Unused for %1; the GPU was at %2 at most.', p.span('seconds'), p.share('ratio')),
  idle_by_other_signals: p =>
    p.t.__(
      'Unused for %1 by CPU, disk and messages; the use of its GPU cannot be read.',
      p.span('seconds')
    ),
  waiting_for_input: p =>
    p.t.__('It waits for an answer in the notebook; unused for %1.', p.span('seconds')),
  settling: p =>
    p.t.__(
      'Quiet for %1; it counts as unused after %2 without use.',
      p.span('seconds'),
      p.span('window_seconds')
    ),
  busy_nothing_moves: p =>
    p.t.__(
      'A cell has been running since %1, but nothing has moved for %2.',
      p.time('since'),
      p.span('seconds')
    ),
  spinning: p =>
    p.t.__('The GPU has been fully in use since %1, at the power of an idle card.', p.time('since'))
};

const UNKNOWN: Record<string, Sentence> = {
  no_samples: p => p.t.__('The GPU has not been read yet.'),
  hole_in_samples: p => p.t.__('The GPU could not be read for %1.', p.span('seconds')),
  clock_jumped: p => p.t.__('The clock jumped by %1, or the machine slept.', p.span('seconds')),
  not_measured_yet: p => p.t.__('The first full minute is not over yet.'),
  library_not_found: p =>
    p.t.__(
      'The NVIDIA library (libnvidia-ml.so.1) is missing: install the driver, or pass it into the container.'
    ),
  driver_not_loaded: p => p.t.__('The NVIDIA kernel driver is not loaded.'),
  version_mismatch: p =>
    p.t.__('NVIDIA library and driver differ in version: the machine needs a restart.'),
  no_permission: p => p.t.__('The NVIDIA driver refused permission (%1).', p.plain('call')),
  not_supported: p => p.t.__('This GPU or its driver cannot tell (%1).', p.plain('call')),
  gpu_lost: p => p.t.__('The GPU has fallen off the bus (%1).', p.plain('call')),
  reset_required: p => p.t.__('The GPU needs a reset (%1).', p.plain('call')),
  uninitialized: p =>
    p.t.__('The NVIDIA driver was reloaded or its devices were taken away; trying again.'),
  function_not_found: p => p.t.__('The NVIDIA driver is too old for %1.', p.plain('call')),
  driver_error: p =>
    p.t.__('The NVIDIA driver answered error %1 (%2).', p.plain('nvml_error'), p.plain('call')),
  driver_timeout: p => p.t.__('The NVIDIA driver has not answered for %1.', p.span('seconds')),
  not_available: p => p.t.__('The NVIDIA driver gives no value (%1).', p.plain('call')),
  mig_no_utilization: p => p.t.__('The use of a MIG device cannot be read.'),
  corrupt_process_list: p =>
    p.t.__('NVIDIA driver %1 returned a damaged list of processes.', p.plain('driver_version')),
  pid_namespace: p =>
    p.t.__(
      'The driver names processes that cannot be seen from here: the server must run with the process ids of the host.'
    ),
  unmatched_gpu_process: p =>
    p.t.__('A process on GPU %1 cannot be matched to a kernel.', p.plain('uuid')),
  proc_unreadable: p => p.t.__('Process %1 cannot be looked at.', p.plain('pid')),
  network_unreadable: p => p.t.__('Network use cannot be read: %1', p.plain('error')),
  network_namespace: p => p.t.__('Process %1 has a network of its own.', p.plain('pid')),
  remote_kernel: p => p.t.__('The kernel runs on another machine.'),
  watch_not_attached: p => p.t.__('Its messages are not watched yet.'),
  kernel_pid_unknown: p => p.t.__('The process of the kernel is not known.'),
  no_gpu: p => p.t.__('This machine has no NVIDIA GPU.'),
  gpu_disabled: p => p.t.__('Reading the GPU is switched off.'),
  suspended: p => p.t.__('Every NVIDIA card sleeps to save power; reading it would wake it.'),
  pynvml_unusable: p =>
    p.t.__('The Python module pynvml cannot be used; reinstall nvidia-ml-py: %1', p.plain('error')),
  damaged_value: p => p.t.__('The NVIDIA driver gave an impossible value (%1).', p.plain('call')),
  simulation_unreadable: p =>
    p.t.__('The folder of the simulated GPUs cannot be read: %1', p.plain('error')),
  asleep: p => p.t.__('No kernel has a GPU open, so the driver is left alone.')
};

const DEADLINE: Record<string, Sentence> = {
  idle_timeout: p => p.t.__('The limit for unused kernels is %1.', p.span('seconds')),
  after_run: p =>
    p.t.__('After a run of %1 it may rest for %2.', p.span('run_seconds'), p.span('seconds')),
  max_runtime: p => p.t.__('The limit for holding a GPU, in use or not, is %1.', p.span('seconds')),
  stalled_timeout: p => p.t.__('The limit for stuck kernels is %1.', p.span('seconds')),
  warm_up: p => p.t.__('It is younger than %1, and left alone until then.', p.span('seconds')),
  kept: p =>
    p.has('owner')
      ? p.t.__('Kept until %1 by %2.', p.time('until'), p.plain('owner'))
      : p.t.__('Kept until %1.', p.time('until')),
  asked_by_user: p => p.t.__('%1 asked for it.', p.plain('owner')),
  stock_culler: p =>
    p.t.__('Jupyter itself shuts it down after %1 without activity.', p.span('seconds')),
  observing: p => p.t.__('Observing: nothing will be shut down.'),
  only_warning: p => p.t.__('Only warning: nothing will be shut down.'),
  out_of_scope: p => p.t.__('The kernel holds no GPU.'),
  no_timeout: p => p.t.__('It is never shut down for being unused.'),
  policy_invalid: p =>
    p.t.__('The policy file is wrong, so nothing is shut down: %1', p.plain('error')),
  policy_not_reloaded: p =>
    p.t.__('The policy file is wrong, so the last good one stays in force: %1', p.plain('error')),
  cannot_record: p =>
    p.t.__('The history cannot be written, so nothing is shut down: %1', p.plain('error'))
};

const ACTING: Record<string, Sentence> = {
  save_failed: p => p.t.__('Saving %1 failed: %2', p.plain('path'), p.plain('error')),
  save_unanswered: p =>
    p.t._n('%1 open tab did not answer.', '%1 open tabs did not answer.', p.count('count')),
  survivors: p =>
    p.t._n(
      '%1 process went on after the shutdown.',
      '%1 processes went on after the shutdown.',
      p.count('count')
    ),
  memory_not_released: p => p.t.__('%1 of GPU memory are still held.', p.size('bytes')),
  shutdown_failed: p => p.t.__('The shutdown failed: %1', p.plain('error')),
  counted_anew: p =>
    p.t.__(
      'It was in use later than was known, or the readings had a hole: counted anew from %1.',
      p.time('since')
    ),
  warning_delivered: p => p.t.__('The warning of %1 was sent to an open page.', p.time('at')),
  warning_seen: p =>
    p.t.__('The warning of %1 was on a page that somebody looked at.', p.time('at')),
  restarted: p => p.t.__('The kernel was restarted.'),
  server_restarted: p => p.t.__('The server stopped while this was under way.')
};

const MISTAKES: Record<string, Sentence> = {
  unknown_kernel: p => p.t.__('There is no kernel %1.', p.plain('kernel_id')),
  unknown_client: p => p.t.__('There is no window %1.', p.plain('client_id')),
  not_allowed: p => p.t.__('You are not signed in, or may not do this.'),
  shutting_down: p => p.t.__('It is too late: the kernel is being shut down.'),
  not_extendable: p => p.t.__('Keeping it does not help: its maximum runtime is over.'),
  old_nonce: p => p.t.__('This request to save is no longer open.'),
  bad_request: p => p.t.__('%1: %2', p.plain('key'), p.plain('error')),
  bad_metadata: p =>
    p.t.__(
      "The notebook's own settings for the guard are not used: %1: %2",
      p.plain('key'),
      p.plain('error')
    ),
  keep_alive_off: p => p.t.__('Keeping kernels is switched off on this server.'),
  keep_alive_too_long: p =>
    p.t.__('A kernel may be kept for %1 at a time.', p.span('limit_seconds')),
  keep_alive_used_up: p =>
    p.t.__('This notebook may be kept for only %1 more.', p.span('limit_seconds'))
};

export const SENTENCES: Readonly<Record<string, Sentence>> = {
  ...ACTIVE,
  ...IDLE,
  ...UNKNOWN,
  ...DEADLINE,
  ...ACTING,
  ...MISTAKES
};

export function sentence(reason: IReason, t: TranslationBundle, now: Date): string {
  const known = Object.hasOwn(SENTENCES, reason.code) ? SENTENCES[reason.code] : undefined;
  return known ? known(new Params(reason.params, t, now)) : reason.text;
}

/** The words of a countdown, short enough for a status bar. */
export function brief(said: ICountdown, t: TranslationBundle, now: Date): string {
  const { idle_seconds, remaining_seconds, at } = said.params;
  switch (said.key) {
    case 'stale':
      return t.__('no news from the server');
    case 'in_use':
      return t.__('in use');
    case 'unused':
      return typeof idle_seconds === 'number'
        ? t.__('unused for %1', amounts.duration(idle_seconds, t))
        : t.__('unused');
    case 'shuts_down':
      return t.__('shuts down in %1', amounts.duration(remaining_seconds, t));
    case 'would_shut_down':
      return t.__('unused for %1 (only warning)', amounts.duration(idle_seconds, t));
    case 'due':
      return t.__('shuts down any moment');
    case 'stuck':
      return t.__('stuck?');
    case 'cannot_tell':
      return t.__("can't tell – not counting");
    case 'kept':
      return t.__('kept until %1', amounts.clock(at, now));
    case 'saving':
      return t.__('saving, then shuts down');
    case 'shutting_down':
      return t.__('shutting down');
    case 'shut_down':
      return t.__('shut down');
    case 'failed':
      return t.__('could not be shut down');
    case 'holds_no_gpu':
      return t.__('holds no GPU');
    case 'observing':
      return t.__('Observing: nothing will be shut down');
  }
}

/** For a text that stays as it is: "shuts down at 14:05 CET", with no time that would have to tick. */
export function still(said: ICountdown, t: TranslationBundle, now: Date): string {
  const { at } = said.params;
  if (!at || (said.key !== 'shuts_down' && said.key !== 'would_shut_down')) {
    return full(said, t, now);
  }
  const time = amounts.clock(at, now);
  return said.key === 'shuts_down'
    ? t.__('shuts down at %1', time)
    : t.__('would be shut down at %1 (only warning)', time);
}

/** The same with the moment it speaks of: "shuts down in 47 min (at 14:05 CET)". */
export function full(said: ICountdown, t: TranslationBundle, now: Date): string {
  const words = brief(said, t, now);
  return said.key === 'shuts_down' && said.params.at
    ? t.__('%1 (at %2)', words, amounts.clock(said.params.at, now))
    : words;
}

const LOST: Record<string, (t: TranslationBundle) => string> = {
  variables: t => t.__('variables'),
  gpu_memory: t => t.__('GPU memory')
};

/** What was lost, by its code; a code of a newer server is shown as it is. */
export function lostWord(code: string, t: TranslationBundle): string {
  return (Object.hasOwn(LOST, code) && LOST[code]?.(t)) || code.replaceAll('_', ' ');
}

/** "a, b and c" in the language of the page. */
export function list(words: readonly string[]): string {
  return new Intl.ListFormat(undefined, { type: 'conjunction' }).format(words);
}
