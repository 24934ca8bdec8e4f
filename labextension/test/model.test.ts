import { beforeEach, describe, expect, it } from 'vitest';
import { GuardModel } from '../src/model';
import type { ISaveRequest } from '../src/wire';
import { kernel, later, NOW, Source, status } from './samples';

let source: Source;
let model: GuardModel;
let machine: number;

beforeEach(() => {
  source = new Source();
  machine = NOW.getTime();
  model = new GuardModel(source, () => machine);
});

const request: ISaveRequest = {
  nonce: 'n1',
  kernel_id: 'k1',
  deadline: later(60),
  documents: [{ path: 'a.ipynb', recovery_path: null }]
};

describe('GuardModel', () => {
  it('is replaced by a status and changed by what follows', () => {
    source.message.emit({
      type: 'status',
      status: status({ kernels: [kernel(), kernel({ kernel_id: 'k2' })] })
    });
    source.message.emit({
      type: 'change',
      kernels: [kernel({ kernel_id: 'k2', verdict: 'active' }), kernel({ kernel_id: 'k3' })],
      removed: ['k1'],
      gpus: [],
      telemetry: { state: 'stale', reason: null, last_success: null },
      server_time: NOW.toISOString()
    });
    expect(model.kernels.map(k => [k.kernel_id, k.verdict])).toEqual([
      ['k2', 'active'],
      ['k3', 'idle']
    ]);
    expect(model.status?.gpus).toEqual([]);
    expect(model.status?.telemetry.state).toBe('stale');
    expect(model.status?.user).toBe('ada');
  });

  it('drops what a later status no longer has, and still knows it', () => {
    source.message.emit({ type: 'status', status: status() });
    source.message.emit({ type: 'status', status: status({ kernels: [] }) });
    expect(model.kernel('k1')).toBeNull();
    expect(model.lastSeen('k1')?.notebooks).toEqual(['work/train.ipynb']);
  });

  it('counts by the clock of the server', () => {
    machine = NOW.getTime() - 300_000; // this machine is five minutes slow
    source.message.emit({ type: 'status', status: status() });
    expect(model.now()).toEqual(NOW);
    machine += 10_000;
    expect(model.now().getTime()).toBe(NOW.getTime() + 10_000);
    source.message.emit({ type: 'beat', server_time: later(20) });
    expect(model.now().getTime()).toBe(NOW.getTime() + 20_000);
    source.message.emit({ type: 'beat', server_time: 'nonsense' });
    expect(model.now().getTime()).toBe(NOW.getTime() + 20_000);
  });

  it('announces a save request once, however it comes', () => {
    const asked: string[] = [];
    model.saveRequested.connect((_, { nonce }) => asked.push(nonce));
    source.message.emit({ type: 'save_request', ...request });
    source.message.emit({ type: 'status', status: status({ save_requests: [request] }) });
    source.message.emit({ type: 'save_request', ...request, nonce: 'n2' });
    expect(asked).toEqual(['n1', 'n2']);
  });

  it('takes the kernel that comes with a warning', () => {
    source.message.emit({ type: 'status', status: status() });
    const warned = kernel({ state: 'warned' });
    const warning = { at: later(0), lead_seconds: 900 };
    source.message.emit({ type: 'warning', kernel_id: 'k1', warning, kernel: warned });
    expect(model.kernel('k1')?.state).toBe('warned');
  });

  it('announces an end, with the kernel no longer there', () => {
    const ends: [string, boolean][] = [];
    model.ended.connect((_, id) => ends.push([id, model.kernel(id) === null]));
    source.message.emit({ type: 'status', status: status() });
    source.message.emit({ type: 'culled', kernel_id: 'k1', tombstone_url: 'tombstones/k1' });
    expect(ends).toEqual([['k1', true]]);
  });

  it('asks for no drawing at a beat or at a message of a newer server', () => {
    let drawn = 0;
    model.changed.connect(() => drawn++);
    source.message.emit({ type: 'beat', server_time: later(0) });
    source.message.emit({ type: 'weather' } as never);
    expect(drawn).toBe(0);
    source.become('stale');
    expect(drawn).toBe(1);
    expect(model.connection).toBe('stale');
  });
});
