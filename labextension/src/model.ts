/**
 * What this page knows: the last status with every later change laid over it, and the server's clock.
 *
 * It asks for nothing itself. Save requests and ended kernels are announced once, whether they came by stream or by
 * polling.
 */

import { type ISignal, Signal } from '@lumino/signaling';
import type { Connection } from './stream';
import type {
  IGpu,
  IKernel,
  IReason,
  ISaveRequest,
  IStatus,
  ITelemetry,
  IWarningSeen,
  StreamMessage
} from './wire';

/** The part of `Stream` that is needed here. */
export interface ISource {
  readonly connection: Connection;
  readonly connectionChanged: ISignal<unknown, Connection>;
  readonly message: ISignal<unknown, StreamMessage>;
}

export interface IFailure {
  kernelId: string;
  reason: IReason;
}

/** How many nonces and departed kernels are remembered. */
const REMEMBERED = 50;

export class GuardModel {
  constructor(
    private readonly source: ISource,
    private readonly clock: () => number = Date.now
  ) {
    source.message.connect((_, message) => this.apply(message));
    source.connectionChanged.connect(() => this._changed.emit());
  }

  get connection(): Connection {
    return this.source.connection;
  }

  /** Any part of the model, or the connection, has changed. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** A whole status arrived: the first, or the first after a gap. */
  get refreshed(): ISignal<this, void> {
    return this._refreshed;
  }

  get saveRequested(): ISignal<this, ISaveRequest> {
    return this._saveRequested;
  }

  /** The guard has shut a kernel down; its id. */
  get ended(): ISignal<this, string> {
    return this._ended;
  }

  /** Saving or shutting down a kernel has failed, and why. */
  get failed(): ISignal<this, IFailure> {
    return this._failed;
  }

  /** A warning stood on this page while it was visible and had the focus; once for each. */
  get warningSeen(): ISignal<this, IWarningSeen> {
    return this._warningSeen;
  }

  sawWarning(seen: IWarningSeen): void {
    this._warningSeen.emit(seen);
  }

  /** Null until the server has answered once. */
  get status(): IStatus | null {
    return this._status;
  }

  get kernels(): readonly IKernel[] {
    return [...this.byId.values()];
  }

  kernel(kernelId: string | null | undefined): IKernel | null {
    return (kernelId && this.byId.get(kernelId)) || null;
  }

  /** A kernel as it was last seen, for the time after it has gone. */
  lastSeen(kernelId: string): IKernel | null {
    return this.byId.get(kernelId) ?? this.departed.get(kernelId) ?? null;
  }

  /** Now, by the server's clock: this machine's may be wrong by minutes. */
  now(): Date {
    return new Date(this.clock() + this.skew);
  }

  private apply(message: StreamMessage): void {
    switch (message.type) {
      case 'status':
        this.replace(message.status);
        break;
      case 'change':
        this.merge(message.kernels, message.removed, message.gpus, message.telemetry);
        this.setClock(message.server_time);
        break;
      case 'warning':
        this.byId.set(message.kernel_id, message.kernel);
        break;
      case 'save_request':
        this.request(message);
        break;
      case 'culled':
        this.end(message.kernel_id);
        break;
      case 'save_failed':
      case 'cull_failed':
        this._failed.emit({ kernelId: message.kernel_id, reason: message.reason });
        return; // the kernel's own change follows
      case 'beat':
        this.setClock(message.server_time);
        return; // nothing to draw
      default:
        return; // a newer server's message
    }
    this._changed.emit();
  }

  private replace(status: IStatus): void {
    this._status = status;
    this.setClock(status.server_time);
    const here = new Set(status.kernels.map(kernel => kernel.kernel_id));
    this.forget([...this.byId.keys()].filter(id => !here.has(id)));
    status.kernels.forEach(kernel => this.byId.set(kernel.kernel_id, kernel));
    this._refreshed.emit();
    status.save_requests.forEach(request => this.request(request));
  }

  private merge(kernels: IKernel[], removed: string[], gpus: IGpu[], telemetry: ITelemetry): void {
    kernels.forEach(kernel => this.byId.set(kernel.kernel_id, kernel));
    this.forget(removed);
    if (this._status) {
      this._status = { ...this._status, gpus, telemetry };
    }
  }

  private forget(kernelIds: string[]): void {
    for (const id of kernelIds) {
      const kernel = this.byId.get(id);
      if (kernel) {
        this.departed.set(id, kernel);
        this.byId.delete(id);
      }
    }
    trim(this.departed);
  }

  private request(request: ISaveRequest): void {
    if (!this.requests.has(request.nonce)) {
      this.requests.set(request.nonce, true);
      trim(this.requests);
      this._saveRequested.emit(request);
    }
  }

  private end(kernelId: string): void {
    this.forget([kernelId]);
    this._ended.emit(kernelId);
  }

  private setClock(serverTime: string): void {
    const at = Date.parse(serverTime);
    if (!Number.isNaN(at)) {
      this.skew = at - this.clock();
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _refreshed = new Signal<this, void>(this);
  private readonly _saveRequested = new Signal<this, ISaveRequest>(this);
  private readonly _ended = new Signal<this, string>(this);
  private readonly _warningSeen = new Signal<this, IWarningSeen>(this);
  private readonly _failed = new Signal<this, IFailure>(this);
  private readonly byId = new Map<string, IKernel>();
  private readonly departed = new Map<string, IKernel>();
  private readonly requests = new Map<string, true>();
  private _status: IStatus | null = null;
  private skew = 0;
}

/** Drop the oldest entries beyond the number remembered. */
function trim(map: Map<string, unknown>): void {
  for (const key of map.keys()) {
    if (map.size <= REMEMBERED) {
      break;
    }
    map.delete(key);
  }
}
