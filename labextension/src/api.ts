/** The REST half: one method for each call. Authentication and XSRF are those of the page. */

import { URLExt } from '@jupyterlab/coreutils';
import { ServerConnection } from '@jupyterlab/services';
import type { IDocumentAnswer, IReason, IReport, IStatus, ITombstone } from './wire';

export const BASE = 'gpu-guard/api/v1';

/** An answer of 4xx or 5xx, with the reason the server gave. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly reason: IReason | null
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

export class Api {
  constructor(private readonly settings: ServerConnection.ISettings) {}

  /** With the save requests that are for this page. */
  status(clientId: string): Promise<IStatus> {
    const query = `?client_id=${encodeURIComponent(clientId)}`;
    return this.request('GET', ['status'], undefined, { query });
  }

  report(clientId: string, report: IReport): Promise<void> {
    return this.request('POST', ['clients', clientId], report);
  }

  /** For `pagehide`: the request outlives the page. */
  leave(clientId: string): Promise<void> {
    return this.request('DELETE', ['clients', clientId], undefined, { keepalive: true });
  }

  /** Raises ApiError 403 over the limit. */
  keepAlive(kernelId: string, seconds: number): Promise<{ until: string }> {
    return this.request('POST', ['kernels', kernelId, 'keep-alive'], { seconds, reason: '' });
  }

  endKeepAlive(kernelId: string): Promise<void> {
    return this.request('DELETE', ['kernels', kernelId, 'keep-alive']);
  }

  shutDown(kernelId: string): Promise<void> {
    return this.request('POST', ['kernels', kernelId, 'cull'], { save: true });
  }

  /** Raises ApiError 409 for a request that is no longer open. */
  saved(
    kernelId: string,
    answer: { nonce: string; client_id: string; documents: IDocumentAnswer[] }
  ): Promise<void> {
    return this.request('POST', ['kernels', kernelId, 'saved'], answer);
  }

  /**
   * Give the server a copy of a document to keep; its id. Raises ApiError 409 for a request that is no longer open, 507
   * where the server has no place for it either.
   */
  async handOver(
    kernelId: string,
    request: { nonce: string; client_id: string; path: string },
    content: string
  ): Promise<string> {
    const query = `?${new URLSearchParams(request).toString()}`;
    const parts = ['kernels', kernelId, 'copies'];
    const kept = await this.request<{ recovery_id: string }>('POST', parts, content, {
      query,
      raw: true
    });
    return kept.recovery_id;
  }

  tombstone(kernelId: string): Promise<ITombstone> {
    return this.request('GET', ['tombstones', kernelId]);
  }

  async tombstonesOf(path: string): Promise<ITombstone[]> {
    const query = `?path=${encodeURIComponent(path)}`;
    const found = await this.request<{ tombstones: ITombstone[] }>(
      'GET',
      ['tombstones'],
      undefined,
      {
        query
      }
    );
    return found.tombstones;
  }

  /** Where a browser finds a recovery notebook that lies outside the files it can open. */
  recoveryUrl(recoveryId: string): string {
    return this.url(['recovery', recoveryId]);
  }

  /** Where the stream is. Browsers cannot set headers on a websocket, so a token goes into the address. */
  streamUrl(clientId: string): string {
    const token =
      this.settings.appendToken && this.settings.token
        ? `&token=${encodeURIComponent(this.settings.token)}`
        : '';
    const address = URLExt.join(this.settings.wsUrl, BASE, 'stream');
    return `${address}?client_id=${encodeURIComponent(clientId)}${token}`;
  }

  openSocket(clientId: string): WebSocket {
    return new this.settings.WebSocket(this.streamUrl(clientId));
  }

  private url(parts: string[]): string {
    return URLExt.join(this.settings.baseUrl, BASE, ...parts.map(encodeURIComponent));
  }

  private async request<T>(
    method: string,
    parts: string[],
    body?: unknown,
    options: { keepalive?: boolean; query?: string; raw?: boolean } = {}
  ): Promise<T> {
    const init: RequestInit = { method };
    if (body !== undefined) {
      init.body = options.raw ? String(body) : JSON.stringify(body);
    }
    if (options.keepalive) {
      init.keepalive = true;
    }
    const address = this.url(parts) + (options.query ?? '');
    const response = await ServerConnection.makeRequest(address, init, this.settings);
    const answer = parse(await response.text());
    if (!response.ok) {
      const { message, reason } = (answer ?? {}) as { message?: string; reason?: unknown };
      throw new ApiError(response.status, message ?? response.statusText, asReason(reason));
    }
    return answer as T;
  }
}

function parse(text: string): unknown {
  try {
    return text === '' ? null : JSON.parse(text);
  } catch {
    return null; // an error page of a proxy
  }
}

/** Jupyter's own errors carry a text where ours carry a code with its params. */
function asReason(value: unknown): IReason | null {
  return typeof value === 'object' && value !== null && 'code' in value ? (value as IReason) : null;
}
