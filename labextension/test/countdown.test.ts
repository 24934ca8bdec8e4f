import { describe, expect, it } from 'vitest';
import { countdown, levelOf } from '../src/countdown';
import type { IKernel } from '../src/wire';
import { brief, full } from '../src/words';
import { kernel, later, NOW, trans } from './samples';

const reason = (code: string): IKernel['reason'] => ({ code, params: {}, text: code });

const CASES: [string, Partial<IKernel>, string, string][] = [
  ['in use', { verdict: 'active', state: 'active', deadline: null }, 'in use', 'ok'],
  ['in use, its deadline far', { verdict: 'active', deadline: later(7200) }, 'in use', 'ok'],
  ['unused, no deadline', { deadline: null }, 'unused for 1 h 15 min', 'ok'],
  ['far from the end', { deadline: later(5400) }, 'shuts down in 1 h 30 min', 'ok'],
  ['after the first lead', { deadline: later(2700) }, 'shuts down in 45 min', 'quiet'],
  ['after the second', { deadline: later(840) }, 'shuts down in 14 min', 'notice'],
  ['after the last', { deadline: later(95) }, 'shuts down in 95 s', 'urgent'],
  ['past the deadline', { deadline: later(-3) }, 'shuts down any moment', 'urgent'],
  ['stuck', { verdict: 'stalled', deadline: null }, 'stuck?', 'notice'],
  [
    'stuck and to be shut down',
    { verdict: 'stalled', deadline: later(840) },
    'shuts down in 14 min',
    'notice'
  ],
  ['unknown', { verdict: 'unknown', deadline: null }, "can't tell – not counting", 'unknown'],
  [
    'unknown: a deadline that stands still is none',
    { verdict: 'unknown', deadline: later(200) },
    "can't tell – not counting",
    'unknown'
  ],
  [
    'unknown, but the longest runtime runs on',
    { verdict: 'unknown', deadline: later(200), deadline_reason: reason('max_runtime') },
    'shuts down in 3 min',
    'urgent'
  ],
  ['observing', { mode: 'observe', deadline: null }, 'Observing: nothing will be shut down', 'ok'],
  [
    'observing, and in use',
    { mode: 'observe', verdict: 'active', deadline: null },
    'Observing: nothing will be shut down',
    'ok'
  ],
  [
    "observing, but Jupyter's own idle shutdown comes",
    { mode: 'observe', deadline: later(240), deadline_source: 'cull_idle_timeout' },
    'shuts down in 4 min',
    'urgent'
  ],
  [
    'only warning',
    { mode: 'warn', deadline: null, would_act: later(840) },
    'unused for 1 h 15 min (only warning)',
    'notice'
  ],
  ['saving', { state: 'saving' }, 'saving, then shuts down', 'urgent'],
  ['shutting down', { state: 'culling' }, 'shutting down', 'urgent'],
  ['shut down', { state: 'culled' }, 'shut down', 'ok'],
  ['failed', { state: 'failed' }, 'could not be shut down', 'notice'],
  ['no GPU held', { deadline: null, deadline_reason: reason('out_of_scope') }, 'holds no GPU', 'ok']
];

describe('countdown', () => {
  it.each(CASES)('%s', (_, changes, words, level) => {
    const said = countdown(kernel(changes), NOW);
    expect(brief(said, trans, NOW)).toBe(words);
    expect(said.level).toBe(level);
  });

  it('says when it is kept, until the first lead', () => {
    const kept = kernel({ keep_alive_until: later(7200), deadline: later(7200) });
    expect(countdown(kept, NOW).key).toBe('kept');
    const near = new Date(NOW.getTime() + 3700_000);
    expect(countdown(kept, near).key).toBe('shuts_down');
  });

  it('does not count once it is stale', () => {
    expect(countdown(kernel(), NOW, true)).toEqual({ key: 'stale', level: 'unknown', params: {} });
  });

  it('gives the moment with its zone', () => {
    const said = countdown(kernel(), NOW);
    const at = new Intl.DateTimeFormat(undefined, {
      hour: '2-digit',
      minute: '2-digit',
      timeZoneName: 'short'
    }).format(new Date(later(2700)));
    expect(full(said, trans, NOW)).toBe(`shuts down in 45 min (at ${at})`);
  });

  it.each([
    [301, [300], 'ok'],
    [300, [300], 'urgent'],
    [299, [900, 300], 'urgent'],
    [899, [900, 300], 'quiet'],
    [10, [], 'ok'],
    [0, [], 'urgent']
  ])('with %i s left and leads %j it is %s', (remaining, leads, level) => {
    expect(levelOf(remaining, leads)).toBe(level);
  });
});
