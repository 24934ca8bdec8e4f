/** Durations, sizes, shares and times as people read them. What is missing reads `?`, never 0. */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Param } from './wire';

const MINUTE = 60;
const HOUR = 3600;
const DAY = 86400;

/** Two units at most, rounded down, so that a countdown never promises more than there is. */
export function duration(seconds: Param | undefined, trans: TranslationBundle): string {
  if (typeof seconds !== 'number' || !Number.isFinite(seconds)) {
    return '?';
  }
  const s = Math.max(0, Math.floor(seconds));
  if (s < 2 * MINUTE) {
    return trans.__('%1 s', s);
  }
  if (s < HOUR) {
    return trans.__('%1 min', Math.floor(s / MINUTE));
  }
  if (s < 2 * DAY) {
    const minutes = Math.floor((s % HOUR) / MINUTE);
    const hours = Math.floor(s / HOUR);
    return minutes ? trans.__('%1 h %2 min', hours, minutes) : trans.__('%1 h', hours);
  }
  const hours = Math.floor((s % DAY) / HOUR);
  const days = Math.floor(s / DAY);
  return hours ? trans.__('%1 d %2 h', days, hours) : trans.__('%1 d', days);
}

/** Seconds until `duration` of a number that falls by one a second reads differently. */
export function untilNextText(seconds: number): number {
  if (seconds < 2 * MINUTE) {
    return 1;
  }
  const step = seconds < 2 * DAY ? MINUTE : HOUR;
  return (seconds % step) + 0.05;
}

/** A ratio as whole percent; a use below half a percent is not shown as none. */
export function percent(ratio: Param | undefined, trans: TranslationBundle): string {
  if (typeof ratio !== 'number' || !Number.isFinite(ratio)) {
    return '?';
  }
  return ratio > 0 && ratio < 0.005 ? trans.__('<1 %') : trans.__('%1 %', Math.round(ratio * 100));
}

export function bytes(size: Param | undefined, trans: TranslationBundle): string {
  if (typeof size !== 'number' || !Number.isFinite(size)) {
    return '?';
  }
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  const step = Math.min(units.length - 1, size < 1 ? 0 : Math.floor(Math.log2(size) / 10));
  const value = size / 1024 ** step;
  const digits = step > 0 && value < 99.95 ? 1 : 0;
  return trans.__('%1 %2', value.toFixed(digits), units[step]);
}

/** A moment as wall-clock time with its zone, "14:05 CET"; with the day when that is not today's. */
export function clock(time: Param | Date | undefined, now: Date, locale?: string): string {
  const at = time instanceof Date ? time : typeof time === 'string' ? new Date(time) : null;
  if (at === null || Number.isNaN(at.getTime())) {
    return '?';
  }
  const today = at.toDateString() === now.toDateString();
  const week = Math.abs(at.getTime() - now.getTime()) < 6 * DAY * 1000;
  return new Intl.DateTimeFormat(locale, {
    hour: '2-digit',
    minute: '2-digit',
    timeZoneName: 'short',
    ...(today ? {} : week ? { weekday: 'short' } : { day: 'numeric', month: 'short' })
  }).format(at);
}
