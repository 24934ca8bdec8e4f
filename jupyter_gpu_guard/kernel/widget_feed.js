/**
 * What GpuGuardWidget hears from the server of its page.
 *
 * It listens to the server's stream, over which it sends nothing. Polling counts as activity at a proxy, so it stands
 * in only where the server answers but has refused the stream three times.
 */

const SILENCE_MS = 60_000; // the server says something every 25 s
const LONGEST_PAUSE_MS = 60_000;
const POLL_MS = 30_000;
const REFUSALS = 3;

/** The server of this page, or null where the page is none of Jupyter's (VS Code, a static copy). */
export function serverOf(doc) {
  const element = doc.getElementById('jupyter-config-data');
  try {
    const config = JSON.parse(element?.textContent ?? '');
    return typeof config.baseUrl === 'string' ? config : null;
  } catch {
    return null;
  }
}

export function endpoint(base, path) {
  return `${base.replace(/\/?$/, '/')}gpu-guard/api/v1/${path}`;
}

/** Browsers set no headers on a websocket, so a token goes into the address. */
export function streamUrl(config, clientId, page) {
  const url = new URL(endpoint(config.wsUrl || config.baseUrl, 'stream'), page);
  url.protocol = url.protocol.replace('http', 'ws');
  url.searchParams.set('client_id', clientId);
  if (config.token) {
    url.searchParams.set('token', config.token);
  }
  return url.href;
}

export function headers(config, doc) {
  const found = { 'Content-Type': 'application/json' };
  const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(doc.cookie);
  if (xsrf) {
    found['X-XSRFToken'] = xsrf[1];
  }
  if (config.token) {
    found.Authorization = `token ${config.token}`;
  }
  return found;
}

/** What comes from the server while it is listened to. `view` is told of each message, and why none comes. */
export class Feed {
  constructor(view, config) {
    this.view = view;
    this.config = config;
    this.clientId = `widget-${Math.random().toString(36).slice(2)}`;
    this.refusals = 0;
  }

  start() {
    if (!this.run) {
      this.run = {};
      this.attempts = 0;
      this.refusals = Math.min(this.refusals, REFUSALS - 1); // one more try each time it comes into sight
      this.connect();
    }
  }

  stop() {
    this.run = null;
    clearTimeout(this.retry);
    this.hush();
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  connect() {
    this.awaitNews();
    if (this.refusals >= REFUSALS) {
      void this.ask();
      return;
    }
    const socket = new WebSocket(streamUrl(this.config, this.clientId, document.baseURI));
    let opened = false;
    this.socket = socket;
    socket.onopen = () => {
      opened = true;
    };
    socket.onmessage = event => {
      if (this.socket === socket) {
        this.hear(event.data);
      }
    };
    socket.onclose = () => {
      if (this.socket === socket) {
        this.socket = null;
        opened ? this.connectLater() : void this.ask();
      }
    };
  }

  /** Something has changed that only a poll would tell. */
  hurry() {
    if (this.run && this.refusals >= REFUSALS) {
      clearTimeout(this.retry);
      void this.ask();
    }
  }

  connectLater() {
    const pause = Math.min(LONGEST_PAUSE_MS, 1000 * 2 ** this.attempts);
    this.attempts = Math.min(this.attempts + 1, 10);
    this.retry = setTimeout(() => this.connect(), pause * (0.5 + Math.random() / 2));
  }

  hear(text) {
    let message;
    try {
      message = JSON.parse(text);
    } catch {
      return; // a proxy talking
    }
    this.attempts = 0;
    this.refusals = 0;
    this.hush();
    this.awaitNews();
    this.view.take(message);
  }

  /** Since the last news, however often the connection was made anew meanwhile. */
  awaitNews() {
    this.silence ??= setTimeout(() => {
      this.silence = null;
      this.view.say('no news from the server');
      this.socket?.close();
    }, SILENCE_MS);
  }

  hush() {
    clearTimeout(this.silence);
    this.silence = null;
  }

  /** The stream was refused: ask once, to tell a proxy from a server that is away or has no guard. */
  async ask() {
    const run = this.run;
    const response = await this.view.fetch('status').catch(() => null);
    const status = response?.ok ? await response.json().catch(() => null) : null;
    if (this.run !== run) {
      return; // out of sight meanwhile
    }
    this.hush();
    if (status) {
      this.refusals += 1;
      this.view.take({ type: 'status', status });
    } else if (response?.status === 404 && !this.view.kernel) {
      this.view.end('This server has no GPU Guard.');
    } else {
      const problem = response ? `refused to answer (${response.status})` : 'cannot be reached';
      this.view.say(`The server ${problem}; trying again.`);
    }
    if (this.run && status && this.refusals >= REFUSALS) {
      this.retry = setTimeout(() => void this.ask(), POLL_MS);
    } else if (this.run) {
      this.connectLater();
    }
  }
}
