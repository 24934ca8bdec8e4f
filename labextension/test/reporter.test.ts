import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ApiError } from '../src/api';
import { newClientId, Reporter } from '../src/reporter';
import type { IReport } from '../src/wire';
import { Disk, OpenDocument } from './disk';
import { kernel, OpenDocuments } from './samples';

let documents: OpenDocuments;
let reports: IReport[];
let left: number;
let reporter: Reporter;
let notebook: OpenDocument;

beforeEach(() => {
  vi.useFakeTimers();
  vi.spyOn(document, 'hasFocus').mockReturnValue(true);
  documents = new OpenDocuments();
  const disk = new Disk();
  disk.put('a.ipynb', {});
  notebook = new OpenDocument(disk, 'a.ipynb', {}, false);
  documents.open = [{ context: notebook.context, kernelId: 'k1' }];
  documents.inFront = { path: 'a.ipynb', kernelId: 'k1' };
  reports = [];
  left = 0;
  const api = {
    report: async (_: string, report: IReport) => void reports.push(report),
    leave: async () => void left++
  };
  reporter = new Reporter(api, 'me', documents);
});

afterEach(() => {
  reporter.dispose();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

const pass = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const input = (): boolean => document.body.dispatchEvent(new Event('keydown', { bubbles: true }));

describe('Reporter', () => {
  it('reports what is open two seconds after it changed', async () => {
    documents.changed.emit();
    await pass(1_999);
    expect(reports).toEqual([]);
    await pass(1);
    expect(reports).toEqual([
      {
        documents: [{ path: 'a.ipynb', kernel_id: 'k1', dirty: false }],
        focused_kernel_id: 'k1',
        visible: true,
        input_age_seconds: null
      }
    ]);
  });

  it('reports a change no sooner than five seconds after the last report', async () => {
    documents.changed.emit();
    await pass(2_000);
    notebook.model.dirty = true;
    documents.changed.emit();
    await pass(4_999);
    expect(reports).toHaveLength(1);
    await pass(1);
    expect(reports).toHaveLength(2);
    expect(reports[1]?.documents[0]?.dirty).toBe(true);
  });

  it('makes one report of many changes, and none of no change', async () => {
    for (let change = 0; change < 10; change++) {
      documents.changed.emit();
    }
    await pass(10_000);
    documents.changed.emit();
    await pass(10_000);
    expect(reports).toHaveLength(1);
  });

  it('says that the page is hidden, and that it is back', async () => {
    const hidden = vi.spyOn(document, 'hidden', 'get').mockReturnValue(true);
    document.dispatchEvent(new Event('visibilitychange'));
    await pass(2_000);
    expect(reports.at(-1)?.visible).toBe(false);
    hidden.mockReturnValue(false);
    document.dispatchEvent(new Event('visibilitychange'));
    await pass(5_000);
    expect(reports.at(-1)?.visible).toBe(true);
  });

  it('says it again, later and later, until the server has heard it', async () => {
    let attempts = 0;
    const api = {
      report: async (): Promise<void> => {
        attempts++;
        if (attempts < 4) {
          throw new Error('away');
        }
      },
      leave: async () => undefined
    };
    const other = new Reporter(api, 'other', documents);
    documents.changed.emit();
    await pass(2_000);
    expect(attempts).toBe(1);
    await pass(5_000);
    expect(attempts).toBe(2);
    await pass(10_000);
    expect(attempts).toBe(3);
    await pass(20_000);
    expect(attempts).toBe(4);
    await pass(300_000);
    expect(attempts).toBe(4);
    other.dispose();
  });

  it('reports an input at once, and inputs once a minute', async () => {
    input();
    expect(reports).toHaveLength(1);
    expect(reports[0]?.input_age_seconds).toBe(0);
    for (let second = 0; second < 59; second++) {
      await pass(1_000);
      input();
    }
    expect(reports).toHaveLength(1);
    await pass(1_000);
    input();
    expect(reports).toHaveLength(2);
  });

  it('reports inputs sooner while a warning stands', async () => {
    const state = { ...kernel(), state: 'warned' as const };
    const other = new Reporter(
      { report: async (_, report) => void reports.push(report), leave: async () => undefined },
      'other',
      documents,
      () => state
    );
    reporter.dispose();
    input();
    await pass(1_000);
    input();
    expect(reports).toHaveLength(1);
    await pass(1_000);
    input();
    expect(reports).toHaveLength(2);
    other.dispose();
  });

  it('reports the first input even right after a change', async () => {
    documents.changed.emit();
    await pass(2_000);
    input();
    expect(reports.map(r => r.input_age_seconds)).toEqual([null, 0]);
  });

  it('says how long ago the last input was', async () => {
    input();
    await pass(30_000);
    notebook.model.dirty = true;
    documents.changed.emit();
    await pass(2_000);
    expect(reports[1]?.input_age_seconds).toBe(32);
  });

  it('never reports because time passes', async () => {
    input();
    await pass(24 * 3_600_000);
    expect(reports).toHaveLength(1);
    expect(vi.getTimerCount()).toBe(0);
  });

  const SEEN = { kernel_id: 'k1', given_at: '2026-03-02T13:00:00.000Z' };

  it('tells at once and once that a warning was seen, and takes that for no input', async () => {
    input();
    await pass(30_000);
    reporter.saw(SEEN);
    notebook.model.dirty = true;
    documents.changed.emit();
    await pass(24 * 3_600_000);
    expect(reports.map(r => [r.warnings_seen, r.input_age_seconds])).toEqual([
      [undefined, 0],
      [[SEEN], 30],
      [undefined, 35]
    ]);
  });

  it('tells of a seen warning without an input ever, and of no input', () => {
    reporter.saw(SEEN);
    expect(reports.map(r => [r.warnings_seen, r.input_age_seconds])).toEqual([[[SEEN], null]]);
  });

  it.each([
    ['again what was not heard', new Error('away'), [[SEEN], [SEEN]]],
    ['not again what was refused', new ApiError(400, 'unknown', null), [[SEEN], undefined]]
  ])('tells %s', async (_, error, told) => {
    const answers: (unknown[] | undefined)[] = [];
    const api = {
      report: async (_id: string, report: IReport): Promise<void> => {
        answers.push(report.warnings_seen);
        if (answers.length === 1) {
          throw error;
        }
      },
      leave: async () => undefined
    };
    reporter.dispose();
    const other = new Reporter(api, 'other', documents);
    other.saw(SEEN);
    await pass(5_000);
    expect(answers).toEqual(told);
    input();
    expect(answers.slice(2)).toEqual([undefined]);
    other.dispose();
  });

  it('takes nobody for present at a notebook that has no kernel or no focus', async () => {
    documents.inFront = { path: 'readme.md', kernelId: null };
    input();
    expect(reports).toEqual([]);
    documents.inFront = { path: 'a.ipynb', kernelId: 'k1' };
    vi.mocked(document.hasFocus).mockReturnValue(false);
    documents.changed.emit();
    await pass(2_000);
    expect(reports[0]?.focused_kernel_id).toBeNull();
  });

  it('says everything again to a server that has forgotten it', async () => {
    documents.changed.emit();
    await pass(2_000);
    reporter.reintroduce();
    await pass(5_000);
    expect(reports).toHaveLength(2);
    expect(reports[1]).toEqual(reports[0]);
  });

  it('says nothing while nothing is open, but says that the last document was closed', async () => {
    const open = documents.open;
    documents.open = [];
    documents.inFront = null;
    documents.changed.emit();
    await pass(10_000);
    expect(reports).toEqual([]);
    documents.open = open;
    documents.changed.emit();
    await pass(10_000);
    documents.open = [];
    documents.changed.emit();
    await pass(10_000);
    expect(reports.map(r => r.documents.length)).toEqual([1, 0]);
  });

  it('says good-bye when the page goes, and is back when the browser brings it back', async () => {
    documents.changed.emit();
    await pass(2_000);
    window.dispatchEvent(new Event('pagehide'));
    expect(left).toBe(1);
    window.dispatchEvent(Object.assign(new Event('pageshow'), { persisted: true }));
    await pass(5_000);
    expect(reports).toHaveLength(2);
  });

  it('names each page anew', () => {
    expect(newClientId()).toMatch(/^[0-9a-f]{32}$/);
    expect(newClientId()).not.toBe(newClientId());
  });
});
