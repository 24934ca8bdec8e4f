/**
 * Words, amounts and times of GpuGuardWidget: the same that the status bar says, in English.
 *
 * Functions of their arguments: no clock, no page.
 */

import { countdown } from './countdown.js';

export function span(seconds) {
  if (typeof seconds !== 'number' || !Number.isFinite(seconds)) {
    return '?';
  }
  const s = Math.max(0, Math.floor(seconds));
  const [minutes, hours, days] = [60, 3600, 86400].map(unit => Math.floor(s / unit));
  if (s < 120) {
    return `${s} s`;
  }
  if (hours === 0) {
    return `${minutes} min`;
  }
  if (days < 2) {
    return `${hours} h` + (minutes % 60 ? ` ${minutes % 60} min` : '');
  }
  return `${days} d` + (hours % 24 ? ` ${hours % 24} h` : '');
}

export function moment(time, now) {
  const at = new Date(time);
  const today = at.toDateString() === now.toDateString();
  const week = Math.abs(at.getTime() - now.getTime()) < 6 * 86_400_000;
  return new Intl.DateTimeFormat(undefined, {
    hour: '2-digit',
    minute: '2-digit',
    timeZoneName: 'short',
    ...(today ? {} : week ? { weekday: 'short' } : { day: 'numeric', month: 'short' })
  }).format(at);
}

export function size(value) {
  if (typeof value !== 'number') {
    return '?';
  }
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const step = Math.min(units.length - 1, value < 1 ? 0 : Math.floor(Math.log2(value) / 10));
  const amount = value / 1024 ** step;
  return `${amount.toFixed(step > 0 && amount < 99.95 ? 1 : 0)} ${units[step]}`;
}

export function share(ratio) {
  if (typeof ratio !== 'number') {
    return '?';
  }
  return ratio > 0 && ratio < 0.005 ? '<1 %' : `${Math.round(ratio * 100)} %`;
}

const WORDS = {
  in_use: () => 'in use',
  unused: ({ idle_seconds }) =>
    typeof idle_seconds === 'number' ? `unused for ${span(idle_seconds)}` : 'unused',
  shuts_down: ({ remaining_seconds, at }, now) =>
    `shuts down in ${span(remaining_seconds)} (at ${moment(at, now)})`,
  would_shut_down: ({ idle_seconds }) => `unused for ${span(idle_seconds)} (only warning)`,
  due: () => 'shuts down any moment',
  stuck: () => 'stuck?',
  cannot_tell: () => "can't tell – not counting",
  kept: ({ at }, now) => `kept until ${moment(at, now)}`,
  saving: () => 'saving, then shuts down',
  shutting_down: () => 'shutting down',
  shut_down: () => 'shut down',
  failed: () => 'could not be shut down',
  holds_no_gpu: () => 'holds no GPU',
  observing: () => 'Observing: nothing will be shut down'
};

/** Words and level of one kernel at one moment. */
export function describe(kernel, now) {
  const { key, level, params } = countdown(kernel, now);
  return [WORDS[key](params, now), level];
}

/** Seconds that "Keep" asks for; 0 where this kernel may not be kept. */
export function keepSeconds(kernel) {
  if (kernel.mode === 'observe' || kernel.state === 'culling' || kernel.state === 'culled') {
    return 0;
  }
  const most = Math.min(kernel.keep_alive_max_seconds, kernel.keep_alive_remaining_seconds);
  return Math.floor(Math.min(kernel.policy.idle_timeout_seconds || 3600, most)) || 0;
}

/** The server's English sentence, with its times as people read them. */
export function localTimes(text, now) {
  return text.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, time => moment(time, now));
}
