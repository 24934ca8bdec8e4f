import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import widget, {
  describe as say,
  keepSeconds,
  localTimes,
  span
} from '../../jupyter_gpu_guard/kernel/widget.js';
import { countdown } from '../src/countdown';
import type { IKernel } from '../src/wire';
import { full } from '../src/words';
import { kernel, later, NOW, status, trans } from './samples';

interface IRequest {
  url: string;
  init: RequestInit;
}

let requests: IRequest[];
let answer: (url: string) => Response;
let seen: (isIntersecting: boolean) => void;
let cleanup: () => void;

beforeEach(() => {
  vi.useFakeTimers();
  requests = [];
  answer = () => Response.json(status());
  vi.stubGlobal('fetch', async (url: string, init: RequestInit) => {
    requests.push({ url, init });
    return answer(url);
  });
  vi.stubGlobal(
    'IntersectionObserver',
    class {
      constructor(callback: (entries: { isIntersecting: boolean }[]) => void) {
        seen = isIntersecting => callback([{ isIntersecting }]);
      }
      observe(): void {
        seen(true);
      }
      disconnect(): void {
        // Nothing to let go of.
      }
    }
  );
  document.cookie = '_xsrf=abc';
  document.body.innerHTML =
    '<script id="jupyter-config-data" type="application/json">' +
    '{"baseUrl": "/user/ada/", "token": "secret"}</script><div id="out"></div>';
});

afterEach(() => {
  cleanup();
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

async function render(kernelId = 'k1'): Promise<HTMLElement> {
  const el = document.getElementById('out') ?? document.body;
  cleanup = widget.render({ model: { get: () => kernelId }, el });
  await vi.advanceTimersByTimeAsync(0);
  return el;
}

describe('GpuGuardWidget in the page', () => {
  it('shows its own kernel', async () => {
    answer = () => Response.json(status({ kernels: [kernel({ kernel_id: 'k0' }), kernel()] }));
    const el = await render();
    expect(el.textContent).toContain('GPU 0 % · 4.0 GiB');
    expect(el.textContent).toContain('shuts down in 45 min (at ');
    expect(requests[0]?.url).toBe('/user/ada/gpu-guard/api/v1/status');
    expect(requests[0]?.init.headers).toMatchObject({
      Authorization: 'token secret',
      'X-XSRFToken': 'abc'
    });
  });

  it('asks every five seconds while it is seen, and not otherwise', async () => {
    await render();
    await vi.advanceTimersByTimeAsync(10_000);
    expect(requests).toHaveLength(3);
    seen(false);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(requests).toHaveLength(3);
    seen(true);
    Object.defineProperty(document, 'hidden', { configurable: true, value: true });
    document.dispatchEvent(new Event('visibilitychange'));
    await vi.advanceTimersByTimeAsync(60_000);
    expect(requests).toHaveLength(4);
    Object.defineProperty(document, 'hidden', { configurable: true, value: false });
    document.dispatchEvent(new Event('visibilitychange'));
    await vi.advanceTimersByTimeAsync(0);
    expect(requests).toHaveLength(5);
  });

  it('stops asking once it is gone', async () => {
    await render();
    cleanup();
    await vi.advanceTimersByTimeAsync(60_000);
    expect(requests).toHaveLength(1);
  });

  it('says so on a page that is none of Jupyter, and asks nobody', async () => {
    document.getElementById('jupyter-config-data')?.remove();
    const el = await render();
    expect(el.textContent).toContain('This page has no GPU Guard');
    expect(requests).toEqual([]);
  });

  it('says so at a server without guard, and does not ask again', async () => {
    answer = () => new Response('', { status: 404 });
    const el = await render();
    expect(el.textContent).toContain('This server has no GPU Guard.');
    await vi.advanceTimersByTimeAsync(60_000);
    expect(requests).toHaveLength(1);
  });

  it.each([
    ['', 'was not started by a Jupyter server'],
    ['k7', 'does not know this kernel']
  ])('says so for a kernel that nobody knows (%j)', async (kernelId, words) => {
    const el = await render(kernelId);
    expect(el.textContent).toContain(words);
  });

  it("shows the times in the server's sentence as people read them", () => {
    const text = localTimes('running since 2026-03-02T12:30:00Z, or so', NOW);
    expect(text).toMatch(/^running since (13:30|01:30 PM) \S+, or so$/);
  });

  it('says that its kernel has ended', async () => {
    const el = await render();
    answer = () => Response.json(status({ kernels: [] }));
    await vi.advanceTimersByTimeAsync(5_000);
    expect(el.textContent).toContain('This kernel has ended.');
    expect(el.querySelector('button')?.hidden).toBe(true);
  });

  it('keeps its kernel', async () => {
    const el = await render();
    el.querySelector('button')?.click();
    await vi.advanceTimersByTimeAsync(0);
    expect(requests[1]?.url).toBe('/user/ada/gpu-guard/api/v1/kernels/k1/keep-alive');
    expect(JSON.parse(String(requests[1]?.init.body))).toEqual({ seconds: 7200, reason: '' });
    expect(requests).toHaveLength(3);
  });

  it('says why it was not kept', async () => {
    const el = await render();
    answer = () => Response.json({ message: 'only 60 s are left' }, { status: 403 });
    el.querySelector('button')?.click();
    await vi.advanceTimersByTimeAsync(0);
    expect(el.textContent).toContain('only 60 s are left');
  });

  it('has no button where it may not be kept', async () => {
    answer = () =>
      Response.json(status({ kernels: [kernel({ mode: 'observe', deadline: null })] }));
    const el = await render();
    expect(el.textContent).toContain('Observing: nothing will be shut down');
    expect(el.querySelector('button')?.hidden).toBe(true);
    expect(keepSeconds(kernel(), { keep_alive_max_seconds: 0 })).toBe(0);
    expect(keepSeconds(kernel(), { keep_alive_max_seconds: null })).toBe(7200);
  });
});

describe('its words are those of the status bar', () => {
  const STATES: Partial<IKernel>[] = [
    {},
    { verdict: 'active', deadline: null },
    { deadline: null },
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

  it.each(STATES)('%j', changes => {
    const sample = kernel(changes);
    const said = countdown(sample, NOW);
    expect(say(sample, NOW)).toEqual([full(said, trans, NOW), said.level]);
  });

  it.each([0, 119, 120, 3600, 5400, 100_000])('a span of %i s', seconds => {
    const sample = kernel({ deadline: null, idle_seconds: seconds });
    expect(say(sample, NOW)[0]).toBe(`unused for ${span(seconds)}`);
    expect(full(countdown(sample, NOW), trans, NOW)).toBe(`unused for ${span(seconds)}`);
  });
});
