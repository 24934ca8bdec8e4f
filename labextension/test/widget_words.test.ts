import { describe, expect, it } from 'vitest';
import {
  describe as say,
  keepSeconds,
  localTimes,
  moment,
  share,
  size,
  span
} from '../../jupyter_gpu_guard/kernel/widget_words.js';
import * as amounts from '../src/amounts';
import { countdown } from '../src/countdown';
import type { IKernel } from '../src/wire';
import { full } from '../src/words';
import { kernel, later, NOW, trans } from './samples';

const STATES: Partial<IKernel>[] = [
  {},
  { verdict: 'active', deadline: null },
  { deadline: null },
  { deadline: null, idle_seconds: null },
  { deadline: later(-1) },
  { deadline: later(100) },
  { verdict: 'stalled', deadline: null },
  { verdict: 'unknown' },
  { verdict: 'unknown', deadline_reason: { code: 'max_runtime', params: {}, text: '' } },
  { mode: 'observe', deadline: null },
  { mode: 'observe', deadline_source: 'cull_idle_timeout' },
  { mode: 'warn', deadline: null, would_act: later(200) },
  { state: 'saving' },
  { state: 'culling' },
  { state: 'culled' },
  { state: 'failed' },
  { keep_alive_until: later(7200), deadline: later(7200) },
  { deadline: null, deadline_reason: { code: 'out_of_scope', params: {}, text: '' } }
];

describe('the words of the widget are those of the status bar', () => {
  it.each(STATES)('%j', changes => {
    const sample = kernel(changes);
    const said = countdown(sample, NOW);
    expect(say(sample, NOW)).toEqual([full(said, trans, NOW), said.level]);
  });

  it.each([0, 119, 120, 3600, 5400, 100_000, 172_800, 200_000])('a span of %i s', seconds => {
    expect(span(seconds)).toBe(amounts.duration(seconds, trans));
  });

  it.each([0, -3600, 2 * 86_400, 30 * 86_400])('a time %i s from now', seconds => {
    expect(moment(later(seconds), NOW)).toBe(amounts.clock(later(seconds), NOW));
  });

  it.each([null, 0, 0.004, 0.005, 1])('a share of %j', ratio => {
    expect(share(ratio)).toBe(amounts.percent(ratio, trans));
  });

  it.each([null, 0, 1000, 300 * 2 ** 20, 4 * 2 ** 30])('%j bytes', bytes => {
    expect(size(bytes)).toBe(amounts.bytes(bytes, trans));
  });
});

it("shows the times in the server's sentence as people read them", () => {
  const text = localTimes('running since 2026-03-02T12:30:00Z, or so', NOW);
  expect(text).toMatch(/^running since (13:30|01:30 PM) \S+, or so$/);
});

it.each<[Partial<IKernel>, number]>([
  [{}, 7200],
  [{ keep_alive_max_seconds: 600 }, 600],
  [{ keep_alive_remaining_seconds: 60.5 }, 60],
  [{ keep_alive_max_seconds: 0 }, 0],
  [{ mode: 'observe' }, 0],
  [{ state: 'culling' }, 0],
  [{ policy: { name: 'all', idle_timeout_seconds: 0, warn_before_seconds: [] } }, 3600]
])('keeps for as long as the limits allow (%j)', (changes, seconds) => {
  expect(keepSeconds(kernel({ keep_alive_max_seconds: 57600, ...changes }))).toBe(seconds);
});
