/**
 * The websocket from the server, which is only ever listened to, and what stands in when there is none.
 *
 * A connection that is lost is opened again with growing, jittered pauses. One that says nothing for a minute (the
 * server says something every 25 s) counts as lost. Where the server answers but refuses the websocket three times,
 * as behind some proxies, `status` is polled instead, by visible pages only: a poll counts as activity at a proxy.
 */

import type { IDisposable } from '@lumino/disposable';
import { type ISignal, Signal } from '@lumino/signaling';
import { ApiError } from './api';
import type { IStatus, StreamMessage } from './wire';

/**
 * `stale`: nothing heard for a minute. `absent`: the server has no guard. `refused`: it lets this user see nothing.
 * The last two are final.
 */
export type Connection = 'connecting' | 'live' | 'polling' | 'stale' | 'absent' | 'refused';

const SILENCE_MS = 60_000;
const LONGEST_PAUSE_MS = 60_000;
const POLL_MS = 10_000;
const REFUSALS = 3;

export interface IStreamOptions {
  open: () => WebSocket;
  /** Ask for the status once. */
  probe: () => Promise<IStatus>;
  random?: () => number;
}

export class Stream implements IDisposable {
  constructor(private readonly options: IStreamOptions) {
    this.random = options.random ?? Math.random;
  }

  get connection(): Connection {
    return this._connection;
  }

  get connectionChanged(): ISignal<this, Connection> {
    return this._connectionChanged;
  }

  get message(): ISignal<this, StreamMessage> {
    return this._message;
  }

  get isDisposed(): boolean {
    return this.disposed;
  }

  start(): void {
    document.addEventListener('visibilitychange', this.onVisibility);
    this.awaitNews();
    this.connect();
  }

  dispose(): void {
    if (!this.disposed) {
      this.disposed = true;
      this.stop();
      Signal.clearData(this);
    }
  }

  private stop(): void {
    document.removeEventListener('visibilitychange', this.onVisibility);
    clearTimeout(this.silence);
    clearTimeout(this.retry);
    clearTimeout(this.poll);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  private connect(): void {
    const socket = this.options.open();
    this.socket = socket;
    let opened = false;
    socket.onopen = () => {
      opened = true;
    };
    socket.onmessage = event => {
      if (this.socket === socket) {
        this.receive(String(event.data));
      }
    };
    socket.onclose = () => {
      if (this.socket === socket) {
        this.socket = null;
        void this.lost(opened);
      }
    };
  }

  private receive(text: string): void {
    let message: StreamMessage;
    try {
      message = JSON.parse(text) as StreamMessage;
    } catch {
      return; // not ours: a proxy talking
    }
    this.attempts = 0;
    this.refusals = 0;
    clearTimeout(this.poll);
    this.heard('live', message);
  }

  private heard(connection: Connection, message: StreamMessage): void {
    this.everHeard = true;
    this.awaitNews();
    this.become(connection);
    this._message.emit(message);
  }

  private awaitNews(): void {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.become('stale');
      this.socket?.close();
    }, SILENCE_MS);
  }

  /** The socket is gone. One that never opened may mean a proxy, a server without guard, or no server. */
  private async lost(opened: boolean): Promise<void> {
    if (this._connection === 'live') {
      this.become('connecting');
    }
    if (!opened && this._connection !== 'polling' && !document.hidden) {
      await this.ask(true);
    }
    if (this.finished) {
      return;
    }
    if (this.refusals >= REFUSALS && document.hidden) {
      return; // resumed when the page is looked at
    }
    const pause = Math.min(LONGEST_PAUSE_MS, 1000 * 2 ** this.attempts);
    this.attempts = Math.min(this.attempts + 1, 10);
    clearTimeout(this.retry);
    this.retry = setTimeout(() => this.connect(), pause * (0.5 + this.random() / 2));
  }

  private async ask(afterRefusal: boolean): Promise<void> {
    let status: IStatus;
    try {
      status = await this.options.probe();
    } catch (error) {
      this.unanswered(error);
      return;
    }
    if (this.finished || this._connection === 'live') {
      return;
    }
    this.refusals += afterRefusal ? 1 : 0;
    const polling = this.refusals >= REFUSALS;
    this.heard(polling ? 'polling' : 'connecting', { type: 'status', status });
    if (polling) {
      this.pollLater();
    }
  }

  /** 403 and 404 are final only for a page that has never been answered: a hub may give them in passing. */
  private unanswered(error: unknown): void {
    const status = error instanceof ApiError ? error.status : 0;
    if (!this.everHeard && (status === 404 || status === 403)) {
      this.become(status === 404 ? 'absent' : 'refused');
      this.stop();
    } else if (this._connection === 'polling') {
      this.pollLater();
    }
  }

  private pollLater(): void {
    clearTimeout(this.poll);
    if (!document.hidden) {
      this.poll = setTimeout(() => void this.ask(false), POLL_MS);
    }
  }

  private readonly onVisibility = (): void => {
    if (document.hidden) {
      clearTimeout(this.poll);
    } else if (this.refusals >= REFUSALS) {
      void this.ask(false);
      if (this.socket === null) {
        clearTimeout(this.retry);
        this.connect();
      }
    }
  };

  private become(connection: Connection): void {
    if (this._connection !== connection) {
      this._connection = connection;
      this._connectionChanged.emit(connection);
    }
  }

  private get finished(): boolean {
    return this.disposed || this._connection === 'absent' || this._connection === 'refused';
  }

  private readonly random: () => number;
  private readonly _message = new Signal<this, StreamMessage>(this);
  private readonly _connectionChanged = new Signal<this, Connection>(this);
  private _connection: Connection = 'connecting';
  private socket: WebSocket | null = null;
  private silence: ReturnType<typeof setTimeout> | undefined;
  private retry: ReturnType<typeof setTimeout> | undefined;
  private poll: ReturnType<typeof setTimeout> | undefined;
  private attempts = 0;
  private refusals = 0;
  private everHeard = false;
  private disposed = false;
}
