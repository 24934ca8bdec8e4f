import { Widget } from '@lumino/widgets';
import { Signal } from '@lumino/signaling';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Api } from '../src/api';
import { detailLines } from '../src/details';
import { Actions } from '../src/keep';
import { GuardModel } from '../src/model';
import { StatusItem, useText } from '../src/statusbar';
import type { IKernelGpu, IStatus } from '../src/wire';
import { kernel, later, NOW, OpenDocuments, settle, Source, status, trans } from './samples';

let source: Source;
let documents: OpenDocuments;
let model: GuardModel;
let item: StatusItem;
let ends: Map<string, string>;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date'], now: NOW });
  source = new Source();
  documents = new OpenDocuments();
  documents.inFront = { path: 'work/train.ipynb', kernelId: 'k1' };
  model = new GuardModel(source);
  ends = new Map();
  const notices = {
    changed: new Signal<object, void>({}),
    endedAt: (path: string) => ends.get(path) ?? null
  };
  const actions = new Actions(model, {} as Api, documents, trans);
  item = new StatusItem(model, documents, actions, trans, notices);
  Widget.attach(item, document.body);
});

afterEach(async () => {
  await hide(false);
  item.dispose();
  vi.useRealTimers();
});

async function say(changes: Partial<IStatus> = {}): Promise<void> {
  source.message.emit({ type: 'status', status: status(changes) });
  await settle();
}

async function hide(hidden: boolean): Promise<void> {
  Object.defineProperty(document, 'hidden', { configurable: true, value: hidden });
  document.dispatchEvent(new Event('visibilitychange'));
  await settle();
}

const text = (part: string): string | null | undefined =>
  item.node.querySelector(`.jp-GpuGuard-${part}`)?.textContent;

const button = (): HTMLButtonElement => item.node.querySelector('button') as HTMLButtonElement;

describe('StatusItem', () => {
  it('shows use, memory and countdown of the notebook in front', async () => {
    await say();
    expect(text('use')).toBe('GPU 0 % · 4.0 GiB');
    expect(text('words')).toBe('shuts down in 45 min');
    expect(button().dataset.level).toBe('quiet');
    expect(button().title).toContain('Unused for 1 h 15 min; the GPU was at 0 % at most.');
    expect(button().title).toMatch(/shuts down in 45 min \(at \S+.*\)/);
  });

  it('counts down by itself, and only when the words change', async () => {
    await say({ kernels: [kernel({ deadline: later(125) })] });
    expect(text('words')).toBe('shuts down in 2 min');
    vi.advanceTimersByTime(5_900);
    await settle();
    expect(text('words')).toBe('shuts down in 119 s');
    vi.advanceTimersByTime(1_000);
    await settle();
    expect(text('words')).toBe('shuts down in 118 s');
  });

  it('draws nothing and runs no timer while the page is hidden', async () => {
    await say();
    await hide(true);
    expect(vi.getTimerCount()).toBe(0);
    await say({ kernels: [kernel({ deadline: later(840) })] });
    expect(text('words')).toBe('shuts down in 45 min');
    expect(vi.getTimerCount()).toBe(0);
    await hide(false);
    expect(text('words')).toBe('shuts down in 14 min');
  });

  it('says when it is out of date', async () => {
    await say();
    source.become('stale');
    await settle();
    expect(text('words')).toBe('no news from the server');
    expect(button().title).toContain('this may be out of date');
  });

  it('says that the GPU is simulated', async () => {
    await say({ simulated: true });
    expect(text('use')).toBe('GPU (simulated) 0 % · 4.0 GiB');
  });

  it('shows the machine where no notebook is in front', async () => {
    documents.inFront = null;
    await say();
    expect(text('use')).toBe('GPU 35 % · 8.0 GiB of 80.0 GiB');
    expect(text('words')).toBe('');
  });

  it('says that the kernel in front was shut down', async () => {
    ends.set('work/train.ipynb', later(-60));
    await say({ kernels: [] });
    expect(text('words')).toMatch(/^shut down at \d\d:59/);
  });

  it('is not there without a GPU, unless something will end the kernel', async () => {
    const telemetry = { state: 'none', reason: null, last_success: null } as const;
    await say({ telemetry, gpus: [], kernels: [kernel({ deadline: null, gpus: [] })] });
    expect(item.isHidden).toBe(true);
    await say({ telemetry, gpus: [], kernels: [kernel({ gpus: [] })] });
    expect(item.isHidden).toBe(false);
    item.wanted = false;
    await settle();
    expect(item.isHidden).toBe(true);
  });

  it('can be reached by keyboard, opens the details, and is no live region', async () => {
    await say();
    expect(button().tabIndex).toBe(0);
    expect(button().getAttribute('aria-live')).toBe('off');
    expect(document.activeElement).not.toBe(button());
    button().click();
    vi.useRealTimers();
    await vi.waitFor(() => expect(document.querySelector('.jp-Dialog')).not.toBeNull());
    const labels = [...document.querySelectorAll('.jp-Dialog button')].map(b => b.textContent);
    expect(labels).toEqual(expect.arrayContaining(['Close', 'Keep for…', 'Shut down now']));
    expect(document.querySelector('.jp-Dialog')?.textContent).toContain('GPU 0 (NVIDIA H100)');
    document.querySelectorAll<HTMLButtonElement>('.jp-Dialog button').forEach(b => b.click());
  });
});

describe('useText', () => {
  const share = (sm_ratio: number | null, memory_bytes: number | null): IKernelGpu => ({
    uuid: 'GPU-a',
    sm_ratio,
    memory_bytes,
    attribution: 'kernel'
  });

  it.each([
    [[share(0.2, 2 ** 30), share(0.6, 2 ** 30)], 'GPU 60 % · 2.0 GiB'],
    [[share(null, 2 ** 30)], 'GPU ? · 1.0 GiB'],
    [[share(0, 2 ** 30), share(null, null)], 'GPU ? · ?'],
    [[share(0.6, 2 ** 30), share(null, null)], 'GPU 60 % · ?'],
    [[], '']
  ])('an unreadable value is never shown as none (%#)', (gpus, expected) => {
    expect(useText(kernel({ gpus }), status(), trans)).toBe(expected);
  });
});

describe('detailLines', () => {
  it('gives the reason that holds everything back, once', async () => {
    const error = { code: 'policy_invalid', params: { error: 'line 3' }, text: '' };
    await say({ policy: { valid: false, hash: null, error }, hold: error });
    const lines = detailLines(model, model.kernel('k1'), trans);
    const found = lines.filter(line => line.includes('line 3'));
    expect(found).toEqual(['The policy file is wrong, so nothing is shut down: line 3']);
  });

  it('says that an attribution is a guess', async () => {
    const gpu = kernel().gpus[0] as IKernelGpu;
    await say({ kernels: [kernel({ gpus: [{ ...gpu, attribution: 'inferred' }] })] });
    const lines = detailLines(model, model.kernel('k1'), trans);
    expect(lines.at(-1)).toBe('GPU 0 (NVIDIA H100): use 0 %, memory 4.0 GiB, probably this kernel');
  });
});
