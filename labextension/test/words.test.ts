import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { describe, expect, it } from 'vitest';
import * as amounts from '../src/amounts';
import { list, lostWord, sentence, SENTENCES } from '../src/words';
import { later, NOW, trans } from './samples';

/** code -> names of its params, from the server's own list. */
function serverTexts(): Map<string, string[]> {
  const source = readFileSync(
    resolve(import.meta.dirname, '../../jupyter_gpu_guard/core/reasons.py'),
    'utf8'
  );
  const table = /^TEXTS[^{]*\{\n([\s\S]*?)^\}/m.exec(source)?.[1] ?? '';
  const found = new Map<string, string[]>();
  for (const [, code, text] of table.matchAll(/^ {4}"([a-z_]+)":((?:(?!^ {4}["#]).*\n)+)/gm)) {
    found.set(
      code ?? '',
      [...(text ?? '').matchAll(/\{([a-z_]+)/g)].map(match => match[1] ?? '')
    );
  }
  return found;
}

/** A value for each param, and what it may read. */
const VALUES: Record<string, string | number> = {
  since: later(-60),
  at: later(-60),
  until: later(60),
  seconds: 7200,
  window_seconds: 600,
  run_seconds: 36000,
  lead_seconds: 900,
  limit_seconds: 3600,
  ratio: 0.25,
  cores: 1.5,
  bytes: 2 ** 30,
  bytes_per_second: 2 ** 20,
  count: 3,
  pid: 4711
};

const TEXTS = serverTexts();

describe('sentences', () => {
  it('has one for every code of the server, and none besides', () => {
    expect(TEXTS.size).toBeGreaterThan(60);
    expect(Object.keys(SENTENCES).sort()).toEqual([...TEXTS.keys()].sort());
  });

  it.each([...TEXTS])('%s reads well with all its params', (code, names) => {
    const params = Object.fromEntries(names.map(name => [name, VALUES[name] ?? `<${name}>`]));
    const said = sentence({ code, params, text: 'English' }, trans, NOW);
    expect(said).not.toBe('English');
    // A param that the server does not send would read "?", a time that is no time "Invalid".
    expect(said).not.toMatch(/\?|undefined|NaN|Invalid|%\d/);
    expect(said).not.toMatch(/\bcull|stalled|tombstone/i);
  });

  it.each([...TEXTS])('%s survives without params', code => {
    expect(sentence({ code, params: {}, text: '' }, trans, NOW)).not.toMatch(/undefined|NaN/);
  });

  it("shows a newer server's text as it is, also for names that every object has", () => {
    for (const code of ['from_the_future', 'constructor']) {
      expect(sentence({ code, params: {}, text: 'new' }, trans, NOW)).toBe('new');
    }
  });

  it.each([
    [1, '1 open tab did not answer.'],
    [3, '3 open tabs did not answer.']
  ])('has a plural where it counts (%i)', (count, text) => {
    const reason = { code: 'save_unanswered', params: { count }, text: '' };
    expect(sentence(reason, trans, NOW)).toBe(text);
  });

  it('says what the params say', () => {
    const reason = { code: 'keep_alive_used_up', params: { limit_seconds: 5400 }, text: '' };
    expect(sentence(reason, trans, NOW)).toBe(
      'This notebook may be kept for only 1 h 30 min more.'
    );
  });
});

describe('amounts', () => {
  it.each([
    [0, '0 s'],
    [119.9, '119 s'],
    [120, '2 min'],
    [3599, '59 min'],
    [3600, '1 h'],
    [5400, '1 h 30 min'],
    [172799, '47 h 59 min'],
    [172800, '2 d'],
    [190800, '2 d 5 h'],
    [-5, '0 s'],
    [null, '?'],
    [undefined, '?']
  ])('a duration of %s reads %s', (seconds, text) => {
    expect(amounts.duration(seconds, trans)).toBe(text);
  });

  it.each([
    [0, '0 B'],
    [1023, '1023 B'],
    [1024, '1.0 KiB'],
    [4.2 * 2 ** 30, '4.2 GiB'],
    [100 * 2 ** 30, '100 GiB'],
    [null, '?']
  ])('%s bytes read %s', (size, text) => {
    expect(amounts.bytes(size, trans)).toBe(text);
  });

  it.each([
    [0, '0 %'],
    [0.001, '<1 %'],
    [0.349, '35 %'],
    [1, '100 %'],
    [null, '?']
  ])('a ratio of %s reads %s', (ratio, text) => {
    expect(amounts.percent(ratio, trans)).toBe(text);
  });

  it('names the day only when it is not today', () => {
    const today = amounts.clock(new Date(NOW.getTime() + 60_000), NOW, 'en-GB');
    expect(today).toBe('14:01 CET');
    const tomorrow = amounts.clock(new Date(NOW.getTime() + 86_400_000), NOW, 'en-GB');
    expect(tomorrow).toMatch(/^Tue,? 14:00 CET$/);
  });

  it.each([
    [119, 1],
    [150, 30.05],
    [7205, 5.05]
  ])('the text of %i s changes after %d s', (seconds, next) => {
    expect(amounts.untilNextText(seconds)).toBeCloseTo(next);
  });

  it('lists words and what was lost', () => {
    const lost = ['variables', 'gpu_memory', 'new_thing'].map(code => lostWord(code, trans));
    expect(lost).toEqual(['variables', 'GPU memory', 'new thing']);
    expect(list(lost)).toMatch(/^variables, GPU memory.+new thing$/);
  });
});
