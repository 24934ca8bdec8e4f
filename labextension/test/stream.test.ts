import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { ApiError } from '../src/api';
import { Stream } from '../src/stream';
import type { IStatus } from '../src/wire';
import { status } from './samples';

class Socket {
  onopen: () => void = () => undefined;
  onmessage: (event: { data: string }) => void = () => undefined;
  onclose: () => void = () => undefined;
  closed = false;

  say(message: object): void {
    this.onmessage({ data: JSON.stringify(message) });
  }

  accept(): void {
    this.onopen();
    this.say({ type: 'status', status: status() });
  }

  drop(): void {
    if (!this.closed) {
      this.closed = true;
      this.onclose();
    }
  }

  close(): void {
    this.drop();
  }
}

let sockets: Socket[];
let probes: number;
let answer: () => Promise<IStatus>;
let stream: Stream;
let heard: string[];

const last = (): Socket => {
  const socket = sockets.at(-1);
  if (!socket) {
    throw new Error('no socket was opened');
  }
  return socket;
};

/** Milliseconds forward, with what promises do meanwhile. */
const pass = (ms: number): Promise<unknown> => vi.advanceTimersByTimeAsync(ms);

function hide(hidden: boolean): void {
  Object.defineProperty(document, 'hidden', { configurable: true, value: hidden });
  document.dispatchEvent(new Event('visibilitychange'));
}

beforeEach(() => {
  vi.useFakeTimers();
  sockets = [];
  probes = 0;
  heard = [];
  answer = async () => status();
  stream = new Stream({
    open: () => {
      const socket = new Socket();
      sockets.push(socket);
      return socket as unknown as WebSocket;
    },
    probe: () => {
      probes += 1;
      return answer();
    },
    random: () => 1
  });
  stream.message.connect((_, message) => heard.push(message.type));
  stream.start();
});

afterEach(() => {
  stream.dispose();
  hide(false);
  vi.useRealTimers();
});

/** The server answers REST, but no websocket gets through. */
async function refuse(times: number): Promise<void> {
  for (let time = 0; time < times; time++) {
    last().drop();
    await pass(0);
    if (time < times - 1) {
      await pass(60_000);
    }
  }
}

describe('Stream', () => {
  it('is live once the server has spoken', () => {
    last().accept();
    expect(stream.connection).toBe('live');
    expect(heard).toEqual(['status']);
    expect(probes).toBe(0);
  });

  it('connects again after a second, then after two, four …, a minute at most', async () => {
    answer = () => Promise.reject(new TypeError('no network'));
    const pauses: number[] = [];
    for (let turn = 0; turn < 9; turn++) {
      const before = sockets.length;
      last().drop();
      let waited = 0;
      while (sockets.length === before) {
        await pass(500);
        waited += 500;
      }
      pauses.push(waited / 1000);
    }
    expect(pauses).toEqual([1, 2, 4, 8, 16, 32, 60, 60, 60]);
  });

  it('starts with short pauses again after it was live', async () => {
    last().accept();
    last().drop();
    await pass(1000);
    last().accept();
    last().drop();
    expect(stream.connection).toBe('connecting');
    await pass(999);
    expect(sockets).toHaveLength(2);
    await pass(1);
    expect(sockets).toHaveLength(3);
  });

  it('jitters the pause downwards, to half of it', async () => {
    stream.dispose();
    const opened: Socket[] = [];
    stream = new Stream({
      open: () => {
        const socket = new Socket();
        opened.push(socket);
        return socket as unknown as WebSocket;
      },
      probe: () => Promise.reject(new TypeError('no network')),
      random: () => 0
    });
    stream.start();
    opened[0]?.drop();
    await pass(500);
    expect(opened).toHaveLength(2);
  });

  it('is stale after a minute of silence and opens a new connection', async () => {
    last().accept();
    const silent = last();
    await pass(59_999);
    expect(stream.connection).toBe('live');
    await pass(1);
    expect(stream.connection).toBe('stale');
    expect(silent.closed).toBe(true);
    await pass(1000);
    expect(sockets).toHaveLength(2);
    last().accept();
    expect(stream.connection).toBe('live');
  });

  it('takes beats for life', async () => {
    last().accept();
    for (let beat = 0; beat < 6; beat++) {
      await pass(25_000);
      last().say({ type: 'beat', server_time: '2026-03-02T13:00:00Z' });
    }
    expect(stream.connection).toBe('live');
    expect(sockets).toHaveLength(1);
  });

  it('ignores what is not JSON', () => {
    last().onmessage({ data: '<html>gateway</html>' });
    expect(heard).toEqual([]);
    expect(stream.connection).toBe('connecting');
  });

  it('polls after three refusals, and says so', async () => {
    await refuse(2);
    expect(stream.connection).not.toBe('polling');
    await pass(60_000);
    await refuse(1);
    expect(stream.connection).toBe('polling');
    const before = probes;
    await pass(10_000);
    expect(probes).toBe(before + 1);
    expect(heard.at(-1)).toBe('status');
  });

  it('does not take a server that is away for a proxy that refuses', async () => {
    answer = () => Promise.reject(new TypeError('no network'));
    await refuse(5);
    expect(stream.connection).not.toBe('polling');
  });

  it('stops polling once a websocket gets through', async () => {
    await refuse(3);
    await pass(60_000);
    last().accept();
    expect(stream.connection).toBe('live');
    const before = probes;
    await pass(30_000);
    expect(probes).toBe(before);
  });

  it('neither polls nor connects from a hidden page that was refused', async () => {
    await refuse(3);
    await pass(60_000); // the next attempt is under way
    hide(true);
    last().drop();
    const [polled, opened] = [probes, sockets.length];
    await pass(600_000);
    expect(probes).toBe(polled);
    expect(sockets).toHaveLength(opened);
    hide(false);
    await pass(0);
    expect(probes).toBe(polled + 1);
    expect(sockets).toHaveLength(opened + 1);
  });

  it('keeps its websocket while the page is hidden', async () => {
    last().accept();
    hide(true);
    last().drop();
    await pass(1000);
    last().say({ type: 'save_request', nonce: 'n', kernel_id: 'k', deadline: '', documents: [] });
    expect(heard).toEqual(['status', 'save_request']);
  });

  it.each([
    [404, 'absent'],
    [403, 'refused']
  ])('gives up for good at a first %i: %s', async (code, connection) => {
    answer = () => Promise.reject(new ApiError(code, 'no', null));
    last().drop();
    await pass(3_600_000);
    expect(stream.connection).toBe(connection);
    expect(sockets).toHaveLength(1);
    expect(probes).toBe(1);
  });

  it('does not give up at a 404 of a server that has had a guard before', async () => {
    last().accept();
    answer = () => Promise.reject(new ApiError(404, 'no', null));
    last().drop();
    await pass(1000);
    last().drop();
    await pass(2000);
    expect(sockets).toHaveLength(3);
  });

  it('is silent once it is disposed', async () => {
    last().accept();
    stream.dispose();
    await pass(600_000);
    expect(sockets).toHaveLength(1);
    expect(last().closed).toBe(true);
  });
});
