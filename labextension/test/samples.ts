/** Wire objects as a server sends them, and stand-ins for what the page has open. */

import { Signal } from '@lumino/signaling';
import { type TranslationBundle, nullTranslator } from '@jupyterlab/translation';
import type { Context, IDocuments, IOpen } from '../src/documents';
import type { ISource } from '../src/model';
import type { Connection } from '../src/stream';
import type { IKernel, IStatus, ITombstone, StreamMessage } from '../src/wire';

export const NOW = new Date('2026-03-02T13:00:00Z');

export const trans: TranslationBundle = nullTranslator.load('jupyter_gpu_guard');

/** ISO time so many seconds after NOW. */
export function later(seconds: number): string {
  return new Date(NOW.getTime() + seconds * 1000).toISOString();
}

export function kernel(changes: Partial<IKernel> = {}): IKernel {
  return {
    kernel_id: 'k1',
    name: 'python3',
    notebooks: ['work/train.ipynb'],
    state: 'idle',
    verdict: 'idle',
    reason: { code: 'idle', params: { seconds: 4500, ratio: 0 }, text: 'unused' },
    executing: false,
    waiting_for_input: false,
    idle_since: later(-4500),
    idle_seconds: 4500,
    deadline: later(2700),
    deadline_source: 'guard',
    deadline_reason: { code: 'idle_timeout', params: { seconds: 7200 }, text: 'unused too long' },
    warnings: [],
    keep_alive_until: null,
    keep_alive_remaining_seconds: 86400,
    mode: 'enforce',
    policy: { name: 'default', idle_timeout_seconds: 7200, warn_before_seconds: [3600, 900, 300] },
    gpus: [{ uuid: 'GPU-a', memory_bytes: 4 * 2 ** 30, sm_ratio: 0, attribution: 'kernel' }],
    has_checkpoint: false,
    documents: [],
    ...changes
  };
}

export function status(changes: Partial<IStatus> = {}): IStatus {
  return {
    version: '0.1.0',
    mode: 'enforce',
    gpu_source: 'nvml',
    simulated: false,
    server_time: NOW.toISOString(),
    user: 'ada',
    limits: { keep_alive_max_seconds: 57600, keep_alive_total_seconds: 86400 },
    telemetry: { state: 'ok', reason: null, last_success: NOW.toISOString() },
    policy: { valid: true, hash: null, error: null },
    gpus: [
      {
        uuid: 'GPU-a',
        index: 0,
        name: 'NVIDIA H100',
        memory_total_bytes: 80 * 2 ** 30,
        memory_used_bytes: 8 * 2 ** 30,
        utilization_ratio: 0.35
      }
    ],
    kernels: [kernel()],
    save_requests: [],
    ...changes
  };
}

export function tombstone(changes: Partial<ITombstone> = {}): ITombstone {
  return {
    kernel_id: 'k1',
    name: 'python3',
    notebooks: ['work/train.ipynb'],
    ended_at: later(-60),
    reason: { code: 'idle_timeout', params: { seconds: 7200 }, text: 'unused too long' },
    warnings: [{ at: later(-960), lead_seconds: 900 }],
    saved: [
      {
        path: 'work/train.ipynb',
        outcome: 'saved',
        hash: 'aa',
        recovery_path: null,
        recovery_id: null
      }
    ],
    lost: ['variables', 'gpu_memory'],
    unanswered: [],
    survivors: 0,
    memory_released_bytes: 4 * 2 ** 30,
    ...changes
  };
}

/** A stream that says what the test says. */
export class Source implements ISource {
  connection: Connection = 'connecting';
  readonly connectionChanged = new Signal<this, Connection>(this);
  readonly message = new Signal<this, StreamMessage>(this);

  become(connection: Connection): void {
    this.connection = connection;
    this.connectionChanged.emit(connection);
  }
}

export class OpenDocuments implements IDocuments {
  readonly changed = new Signal<this, void>(this);
  readonly frontChanged = new Signal<this, void>(this);
  readonly opened = new Signal<this, Context>(this);
  readonly ran = new Signal<this, string>(this);
  /** How often what is in front was given the focus. */
  focused = 0;
  open: IOpen[] = [];
  inFront: { path: string; kernelId: string | null } | null = null;

  /** Open, but on no kernel, or on another. */
  elsewhere: Context[] = [];

  all(): IOpen[] {
    return this.open;
  }

  at(path: string): Context[] {
    const contexts = [...this.open.map(({ context }) => context), ...this.elsewhere];
    return contexts.filter(context => context.localPath === path);
  }

  front(): { path: string; kernelId: string | null } | null {
    return this.inFront;
  }

  paths(): string[] {
    return this.open.map(({ context }) => context.localPath);
  }

  focusFront(): void {
    this.focused += 1;
  }
}

/** What JupyterLab shows of a notification: an element with its id. */
export function popUp(notification: string): HTMLElement {
  const element = document.createElement('div');
  element.id = notification;
  document.body.append(element);
  return element;
}

/** Let promises that are settled run their callbacks. */
export async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn++) {
    await Promise.resolve();
  }
}
