import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import widget from '../../jupyter_gpu_guard/kernel/widget.js';
import { streamUrl } from '../../jupyter_gpu_guard/kernel/widget_feed.js';
import type { IKernel, StreamMessage } from '../src/wire';
import { kernel as sample, later, NOW, status, tombstone } from './samples';

interface IRequest {
  url: string;
  init: RequestInit;
}

/** A websocket as the page sees it. It has no `send`: calling it would fail. */
class Socket {
  onopen?: () => void;
  onmessage?: (event: { data: string }) => void;
  onclose?: () => void;
  closed = false;

  constructor(readonly url: string) {
    sockets.push(this);
  }

  /** Open, and say what a server says first. */
  accept(changes: Partial<IKernel> | null = {}): void {
    this.onopen?.();
    const kernels = changes ? [kernel({ kernel_id: 'k0' }), kernel(changes)] : [];
    this.say({ type: 'status', status: status({ kernels, server_time: now() }) });
  }

  say(message: StreamMessage | { type: 'culled'; kernel_id: string; reason: object }): void {
    this.onmessage?.({ data: JSON.stringify(message) });
  }

  change(changes: Partial<IKernel>, removed: string[] = []): void {
    const { gpus, telemetry } = status();
    const kernels = removed.length ? [] : [kernel(changes)];
    this.say({ type: 'change', kernels, removed, gpus, telemetry, server_time: now() });
  }

  drop(): void {
    this.closed = true;
    this.onclose?.();
  }

  close(): void {
    this.drop();
  }
}

let sockets: Socket[];
let requests: IRequest[];
let answer: (url: string) => Response;
let seen: (isIntersecting: boolean) => void;
let cleanup: () => void;

const now = (): string => new Date().toISOString();
const pass = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);
const asked = (): string[] => requests.map(({ url }) => url.replace(/^.*\/v1\//, ''));

function kernel(changes: Partial<IKernel>): IKernel {
  return sample({ keep_alive_max_seconds: 57600, ...changes });
}

function last(): Socket {
  const socket = sockets.at(-1);
  if (!socket) {
    throw new Error('no socket was opened');
  }
  return socket;
}

function hide(hidden: boolean): void {
  Object.defineProperty(document, 'hidden', { configurable: true, value: hidden });
  document.dispatchEvent(new Event('visibilitychange'));
}

beforeEach(() => {
  vi.useFakeTimers({ now: NOW });
  vi.spyOn(Math, 'random').mockReturnValue(0.999_999);
  sockets = [];
  requests = [];
  answer = () => new Response('', { status: 404 });
  vi.stubGlobal('fetch', async (url: string, init: RequestInit) => {
    requests.push({ url, init });
    return answer(url);
  });
  vi.stubGlobal('WebSocket', Socket);
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
  hide(false);
  vi.unstubAllGlobals();
  vi.restoreAllMocks();
  vi.useRealTimers();
});

async function render(kernelId = 'k1'): Promise<HTMLElement> {
  const el = document.getElementById('out') ?? document.body;
  cleanup = widget.render({ model: { get: () => kernelId }, el });
  await pass(0);
  return el;
}

describe('GpuGuardWidget listens', () => {
  it('to the stream of its server, and shows its own kernel', async () => {
    const el = await render();
    last().accept();
    expect(el.textContent).toContain('GPU 0 % · 4.0 GiB');
    expect(el.textContent).toContain('shuts down in 45 min (at ');
    const url = new URL(last().url);
    expect(url.protocol + url.pathname).toBe('ws:/user/ada/gpu-guard/api/v1/stream');
    expect(url.searchParams.get('client_id')).toMatch(/^widget-[a-z0-9]+$/);
    expect(url.searchParams.get('token')).toBe('secret');
    expect(requests).toEqual([]);
  });

  it.each([
    [{ baseUrl: '/' }, 'https://hub/lab', 'wss://hub/gpu-guard/api/v1/stream?client_id=me'],
    [
      { baseUrl: '/a', wsUrl: 'wss://other/a', token: '' },
      'https://hub/lab',
      'wss://other/a/gpu-guard/api/v1/stream?client_id=me'
    ]
  ])('where the page says (%j)', (config, page, url) => {
    expect(streamUrl(config, 'me', page)).toBe(url);
  });

  it('and counts down by itself, by the clock of the server', async () => {
    const el = await render();
    const ahead = status({ server_time: later(600), kernels: [kernel({ deadline: later(700) })] });
    last().say({ type: 'status', status: ahead });
    expect(el.textContent).toContain('shuts down in 100 s');
    await pass(3_000);
    expect(el.textContent).toContain('shuts down in 97 s');
    last().change({ deadline: null, verdict: 'active' });
    expect(el.textContent).toContain('in use');
    expect(requests).toEqual([]);
  });

  it('while it is seen, and not otherwise', async () => {
    const el = await render();
    last().accept();
    seen(false);
    expect(last().closed).toBe(true);
    const before = el.textContent;
    await pass(300_000);
    expect(sockets).toHaveLength(1);
    expect(el.textContent).toBe(before);
    seen(true);
    expect(sockets).toHaveLength(2);
    last().accept();
    hide(true);
    expect(last().closed).toBe(true);
    hide(false);
    expect(sockets).toHaveLength(3);
    cleanup();
    expect(last().closed).toBe(true);
    await pass(300_000);
    expect(sockets).toHaveLength(3);
    expect(requests).toEqual([]);
  });

  it('and says so when the server has said nothing for a minute', async () => {
    const el = await render();
    last().accept();
    await pass(40_000);
    last().say({ type: 'beat', server_time: now() });
    await pass(59_000);
    expect(el.textContent).toContain('shuts down in');
    await pass(2_000);
    expect(el.textContent).toContain('no news from the server');
    expect(el.textContent).not.toContain('shuts down in');
    await pass(1_000);
    expect(sockets).toHaveLength(2);
    last().accept();
    expect(el.textContent).toContain('shuts down in');
  });

  it('again after a loss, with pauses of a minute at most', async () => {
    await render();
    last().accept();
    for (const pause of [1, 2, 4, 8, 16, 32, 60, 60]) {
      const before = sockets.length;
      last().onopen?.();
      last().drop();
      await pass(pause * 1000 - 10);
      expect(sockets).toHaveLength(before);
      await pass(20);
      expect(sockets).toHaveLength(before + 1);
    }
    expect(requests).toEqual([]);
  });
});

describe('GpuGuardWidget without a stream', () => {
  it('says so at a server without guard, and does not ask again', async () => {
    const el = await render();
    last().drop();
    await pass(0);
    expect(el.textContent).toContain('This server has no GPU Guard.');
    await pass(300_000);
    expect(asked()).toEqual(['status']);
    expect(sockets).toHaveLength(1);
    expect(requests[0]?.init.headers).toMatchObject({
      Authorization: 'token secret',
      'X-XSRFToken': 'abc'
    });
  });

  it('polls where the server answers but has refused the stream three times', async () => {
    answer = () => Response.json(status({ server_time: now(), kernels: [kernel({})] }));
    const el = await render();
    for (const pause of [1_000, 2_000, 0]) {
      last().drop();
      await pass(pause);
    }
    expect([sockets.length, requests.length]).toEqual([3, 3]);
    expect(el.textContent).toContain('shuts down in');
    await pass(29_000);
    expect(requests).toHaveLength(3);
    await pass(61_000);
    expect([sockets.length, requests.length]).toEqual([3, 6]);
    hide(true);
    await pass(300_000);
    expect(requests).toHaveLength(6);
    hide(false); // one more try
    expect(sockets).toHaveLength(4);
    last().drop();
    await pass(31_000);
    expect([sockets.length, requests.length]).toEqual([4, 8]);
  });

  it.each<[string, () => Response, string]>([
    ['away', () => Response.error(), 'cannot be reached'],
    ['refusing', () => new Response('', { status: 403 }), 'refused to answer (403)']
  ])('goes on trying at a server that is %s', async (_, given, words) => {
    answer = url => {
      const response = given();
      if (response.type === 'error') {
        throw new TypeError(url);
      }
      return response;
    };
    const el = await render();
    for (const pause of [1_000, 2_000, 4_000, 8_000]) {
      last().drop();
      await pass(pause);
      expect(el.textContent).toContain(words);
    }
    expect(sockets).toHaveLength(5);
    last().accept();
    expect(el.textContent).toContain('shuts down in');
  });

  it('says so on a page that is none of Jupyter, and asks nobody', async () => {
    document.getElementById('jupyter-config-data')?.remove();
    const el = await render();
    expect(el.textContent).toContain('This page has no GPU Guard');
    expect([...sockets, ...requests]).toEqual([]);
  });

  it('says so in a kernel that no server started', async () => {
    const el = await render('');
    expect(el.textContent).toContain('was not started by a Jupyter server');
    expect([...sockets, ...requests]).toEqual([]);
  });
});

describe('GpuGuardWidget at the end of its kernel', () => {
  const reason = { code: 'idle_timeout', params: {}, text: 'unused since 2026-03-02T12:30:00Z' };
  const SHUT_DOWN = /shut down at (14:00|02:00 PM)/;

  it('says when it was shut down, and why, and listens no longer', async () => {
    const el = await render();
    last().accept({ state: 'saving' });
    expect(el.textContent).toContain('saving, then shuts down');
    last().say({ type: 'culled', kernel_id: 'k0', reason });
    expect(el.textContent).toContain('saving, then shuts down');
    last().say({ type: 'culled', kernel_id: 'k1', reason });
    expect(el.textContent).toMatch(SHUT_DOWN);
    expect(el.textContent).toMatch(/unused since (13:30|01:30 PM)/);
    expect(el.querySelector('button')?.hidden).toBe(true);
    expect(last().closed).toBe(true);
    await pass(300_000);
    expect(el.textContent).toMatch(SHUT_DOWN);
    expect([sockets.length, requests.length]).toEqual([1, 0]);
  });

  it('reads when that was, where it was out of sight meanwhile', async () => {
    const el = await render();
    last().accept();
    seen(false);
    await pass(600_000);
    answer = () => Response.json(tombstone({ ended_at: NOW.toISOString(), reason }));
    seen(true);
    last().accept(null);
    await pass(0);
    expect(asked()).toEqual(['tombstones/k1']);
    expect(el.textContent).toMatch(SHUT_DOWN);
  });

  it('says that it has ended where the guard did not do it', async () => {
    const el = await render();
    last().accept();
    last().change({}, ['k1']);
    await pass(0);
    expect(el.textContent).toContain('This kernel has ended.');
    expect(last().closed).toBe(true);
  });

  it('waits for a kernel that the guard does not know yet', async () => {
    const el = await render();
    last().accept(null);
    await pass(0);
    expect(el.textContent).toContain('does not know this kernel');
    last().change({});
    expect(el.textContent).toContain('shuts down in');
  });
});

describe('the button of GpuGuardWidget', () => {
  it('keeps its kernel, and asks no more than that', async () => {
    const el = await render();
    last().accept();
    const button = el.querySelector('button');
    expect([button?.hidden, button?.title]).toEqual([false, 'Keep this kernel for 2 h from now']);
    answer = () => Response.json({ until: later(7200), remaining_total_seconds: 79200 });
    button?.click();
    await pass(0);
    expect(asked()).toEqual(['kernels/k1/keep-alive']);
    expect(JSON.parse(String(requests[0]?.init.body))).toEqual({ seconds: 7200, reason: '' });
    last().change({ keep_alive_until: later(7200), deadline: later(7200) });
    expect(el.textContent).toMatch(/kept until (16:00|04:00 PM)/);
  });

  it('says why it was not kept, for long enough to be read', async () => {
    const el = await render();
    last().accept();
    answer = () => Response.json({ message: 'only 60 s are left' }, { status: 403 });
    el.querySelector('button')?.click();
    await pass(5_000);
    expect(el.textContent).toContain('only 60 s are left');
    await pass(6_000);
    expect(el.textContent).not.toContain('only 60 s are left');
  });

  it('is not there where the kernel may not be kept', async () => {
    const el = await render();
    last().accept({ mode: 'observe', deadline: null });
    expect(el.textContent).toContain('Observing: nothing will be shut down');
    expect(el.querySelector('button')?.hidden).toBe(true);
  });
});
