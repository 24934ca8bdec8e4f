/**
 * Words, amounts and times of GpuGuardWidget: the same that the status bar says, in English.
 *
 * Functions of their arguments: no clock, no page.
 */

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
  return new Intl.DateTimeFormat(undefined, {
    hour: '2-digit',
    minute: '2-digit',
    timeZoneName: 'short',
    ...(at.toDateString() === now.toDateString() ? {} : { weekday: 'short' })
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

function levelOf(remaining, leads) {
  const reached = leads.filter(lead => remaining <= lead).length;
  if (remaining <= 0 || (reached > 0 && reached === leads.length)) {
    return 'urgent';
  }
  return reached === 0 ? 'ok' : reached === 1 ? 'quiet' : 'notice';
}

const UNDER_WAY = {
  saving: ['saving, then shuts down', 'urgent'],
  culling: ['shutting down', 'urgent'],
  culled: ['shut down', 'ok'],
  failed: ['could not be shut down', 'notice']
};

/** Words and level of one kernel at one moment. */
export function describe(kernel, now) {
  if (UNDER_WAY[kernel.state]) {
    return UNDER_WAY[kernel.state];
  }
  const foreign = Boolean(kernel.deadline) && (kernel.deadline_source ?? 'guard') !== 'guard';
  if (kernel.mode === 'observe' && !foreign) {
    return ['Observing: nothing will be shut down', 'ok'];
  }
  const regardless = ['max_runtime', 'asked_by_user'].includes(kernel.deadline_reason?.code);
  if (kernel.verdict === 'unknown' && !foreign && !(kernel.deadline && regardless)) {
    return ["can't tell – not counting", 'unknown'];
  }
  return counting(kernel, now, foreign) ?? resting(kernel, now);
}

function counting(kernel, now, foreign) {
  const at = kernel.deadline ?? (kernel.mode === 'warn' ? kernel.would_act : null);
  if (!at) {
    return null;
  }
  const remaining = (Date.parse(at) - now.getTime()) / 1000;
  const level = levelOf(remaining, kernel.policy.warn_before_seconds);
  const counts = kernel.verdict === 'idle' || kernel.verdict === 'stalled';
  if (level === 'ok' && (!counts || isKept(kernel, now))) {
    return null;
  }
  if (kernel.mode === 'warn' && !foreign) {
    return [`unused for ${span(kernel.idle_seconds)} (only warning)`, level];
  }
  return remaining > 0
    ? [`shuts down in ${span(remaining)} (at ${moment(at, now)})`, level]
    : ['shuts down any moment', level];
}

function resting(kernel, now) {
  if (isKept(kernel, now)) {
    return [`kept until ${moment(kernel.keep_alive_until, now)}`, 'ok'];
  }
  if (!kernel.deadline && kernel.deadline_reason?.code === 'out_of_scope') {
    return ['holds no GPU', 'ok'];
  }
  const words = {
    stalled: ['stuck?', 'notice'],
    idle: [`unused for ${span(kernel.idle_seconds)}`, 'ok'],
    unknown: ["can't tell – not counting", 'unknown']
  };
  return words[kernel.verdict] ?? ['in use', 'ok'];
}

function isKept(kernel, now) {
  return Boolean(kernel.keep_alive_until) && Date.parse(kernel.keep_alive_until) > now.getTime();
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
