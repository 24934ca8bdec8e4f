/**
 * What to say of one kernel at one moment: which sentence, how urgent, and the numbers in it.
 *
 * For the status bar, which is built from it, and for GpuGuardWidget. Functions of their arguments: no clock, no words,
 * no page. Plain JavaScript, since the widget comes without a build; the types are in labextension/src/countdown.ts.
 */

/** Shutdowns that come whatever the verdict says. */
const REGARDLESS = ['max_runtime', 'asked_by_user'];

export function countdown(kernel, now, stale = false) {
  if (stale) {
    return told('stale', 'unknown');
  }
  const under_way = underWay(kernel);
  if (under_way) {
    return under_way;
  }
  const foreign = endedByOthers(kernel);
  if (kernel.mode === 'observe' && !foreign) {
    return told('observing', 'ok');
  }
  if (kernel.verdict === 'unknown' && !foreign && !comesRegardless(kernel)) {
    return told('cannot_tell', 'unknown');
  }
  return counting(kernel, now, foreign) ?? resting(kernel, now);
}

function underWay(kernel) {
  switch (kernel.state) {
    case 'saving':
      return told('saving', 'urgent');
    case 'culling':
      return told('shutting_down', 'urgent');
    case 'culled':
      return told('shut_down', 'ok');
    case 'failed':
      return told('failed', 'notice');
    default:
      return null;
  }
}

/** The countdown, where there is one and it is what matters now. */
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
  const params = {
    remaining_seconds: Math.max(0, remaining),
    idle_seconds: kernel.idle_seconds,
    at
  };
  if (kernel.mode === 'warn' && !foreign) {
    return told('would_shut_down', level, params);
  }
  return told(remaining > 0 ? 'shuts_down' : 'due', level, params);
}

function resting(kernel, now) {
  if (isKept(kernel, now)) {
    return told('kept', 'ok', { at: kernel.keep_alive_until });
  }
  if (!kernel.deadline && kernel.deadline_reason?.code === 'out_of_scope') {
    return told('holds_no_gpu', 'ok');
  }
  switch (kernel.verdict) {
    case 'stalled':
      return told('stuck', 'notice');
    case 'idle':
      return told('unused', 'ok', { idle_seconds: kernel.idle_seconds });
    case 'unknown':
      return told('cannot_tell', 'unknown');
    default:
      return told('in_use', 'ok');
  }
}

/** With a single lead that lead is urgent: there is no later one to be so. */
export function levelOf(remaining, leads) {
  const reached = leads.filter(lead => remaining <= lead).length;
  if (remaining <= 0 || (reached > 0 && reached === leads.length)) {
    return 'urgent';
  }
  return reached === 0 ? 'ok' : reached === 1 ? 'quiet' : 'notice';
}

/** Another ender than the guard, such as Jupyter's own idle shutdown, which no mode of ours holds back. */
function endedByOthers(kernel) {
  return Boolean(kernel.deadline && kernel.deadline_source && kernel.deadline_source !== 'guard');
}

function comesRegardless(kernel) {
  return Boolean(kernel.deadline && REGARDLESS.includes(kernel.deadline_reason?.code));
}

export function isKept(kernel, now) {
  return Boolean(kernel.keep_alive_until && Date.parse(kernel.keep_alive_until) > now.getTime());
}

function told(key, level, params = {}) {
  return { key, level, params };
}
