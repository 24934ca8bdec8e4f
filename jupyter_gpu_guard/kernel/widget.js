/**
 * The page's half of GpuGuardWidget: listens to the server and shows the state of one kernel.
 *
 * One file without imports, as it travels through the kernel. It listens only while it can be seen, and never talks to
 * the kernel, since that would count as activity there. Nothing is sent over the stream, and polling, which counts as
 * activity at a proxy, stands in only where the server answers but the stream is refused.
 */

const SILENCE_MS = 60_000; // the server says something every 25 s
const LONGEST_PAUSE_MS = 60_000;
const POLL_MS = 30_000;
const REFUSALS = 3;
const PROBLEM_MS = 10_000;

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

function endpoint(base, path) {
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

function headers(config, doc) {
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

export function span(seconds) {
  if (typeof seconds !== 'number' || !Number.isFinite(seconds)) {
    return '?';
  }
  const s = Math.max(0, Math.floor(seconds));
  const [minutes, hours, days] = [60, 3600, 86400].map(unit => Math.floor(s / unit));
  if (s < 120) {
    return `${s} s`;
  }
  if (hours === 0) {
    return `${minutes} min`;
  }
  if (days < 2) {
    return `${hours} h` + (minutes % 60 ? ` ${minutes % 60} min` : '');
  }
  return `${days} d` + (hours % 24 ? ` ${hours % 24} h` : '');
}

function moment(time, now) {
  const at = new Date(time);
  return new Intl.DateTimeFormat(undefined, {
    hour: '2-digit',
    minute: '2-digit',
    timeZoneName: 'short',
    ...(at.toDateString() === now.toDateString() ? {} : { weekday: 'short' })
  }).format(at);
}

function size(value) {
  if (typeof value !== 'number') {
    return '?';
  }
  return value < 2 ** 30
    ? `${(value / 2 ** 20).toFixed(1)} MiB`
    : `${(value / 2 ** 30).toFixed(1)} GiB`;
}

function share(ratio) {
  if (typeof ratio !== 'number') {
    return '?';
  }
  return ratio > 0 && ratio < 0.005 ? '<1 %' : `${Math.round(ratio * 100)} %`;
}

function levelOf(remaining, leads) {
  const reached = leads.filter(lead => remaining <= lead).length;
  if (remaining <= 0 || (reached > 0 && reached === leads.length)) {
    return 'urgent';
  }
  return reached === 0 ? 'ok' : reached === 1 ? 'quiet' : 'notice';
}

const UNDER_WAY = {
  saving: ['saving, then shuts down', 'urgent'],
  culling: ['shutting down', 'urgent'],
  culled: ['shut down', 'ok'],
  failed: ['could not be shut down', 'notice']
};

/** Words and level of one kernel at one moment. */
export function describe(kernel, now) {
  if (UNDER_WAY[kernel.state]) {
    return UNDER_WAY[kernel.state];
  }
  const foreign = Boolean(kernel.deadline) && (kernel.deadline_source ?? 'guard') !== 'guard';
  if (kernel.mode === 'observe' && !foreign) {
    return ['Observing: nothing will be shut down', 'ok'];
  }
  const regardless = ['max_runtime', 'asked_by_user'].includes(kernel.deadline_reason?.code);
  if (kernel.verdict === 'unknown' && !foreign && !(kernel.deadline && regardless)) {
    return ["can't tell – not counting", 'unknown'];
  }
  return counting(kernel, now, foreign) ?? resting(kernel, now);
}

function counting(kernel, now, foreign) {
  const at = kernel.deadline ?? (kernel.mode === 'warn' ? kernel.would_act : null);
  if (!at) {
    return null;
  }
  const remaining = (Date.parse(at) - now.getTime()) / 1000;
  const level = levelOf(remaining, kernel.policy.warn_before_seconds);
  const counts = kernel.verdict === 'idle' || kernel.verdict === 'stalled';
  if (level === 'ok' && (!counts || isKept(kernel, now))) {
    return null;
  }
  if (kernel.mode === 'warn' && !foreign) {
    return [`unused for ${span(kernel.idle_seconds)} (only warning)`, level];
  }
  return remaining > 0
    ? [`shuts down in ${span(remaining)} (at ${moment(at, now)})`, level]
    : ['shuts down any moment', level];
}

function resting(kernel, now) {
  if (isKept(kernel, now)) {
    return [`kept until ${moment(kernel.keep_alive_until, now)}`, 'ok'];
  }
  if (!kernel.deadline && kernel.deadline_reason?.code === 'out_of_scope') {
    return ['holds no GPU', 'ok'];
  }
  const words = {
    stalled: ['stuck?', 'notice'],
    idle: [`unused for ${span(kernel.idle_seconds)}`, 'ok'],
    unknown: ["can't tell – not counting", 'unknown']
  };
  return words[kernel.verdict] ?? ['in use', 'ok'];
}

function isKept(kernel, now) {
  return Boolean(kernel.keep_alive_until) && Date.parse(kernel.keep_alive_until) > now.getTime();
}

/** Seconds that "Keep" asks for; 0 where this kernel may not be kept. */
export function keepSeconds(kernel) {
  if (kernel.mode === 'observe' || kernel.state === 'culling' || kernel.state === 'culled') {
    return 0;
  }
  const most = Math.min(kernel.keep_alive_max_seconds, kernel.keep_alive_remaining_seconds);
  return Math.floor(Math.min(kernel.policy.idle_timeout_seconds || 3600, most)) || 0;
}

/** The server's English sentence, with its times as people read them. */
export function localTimes(text, now) {
  return text.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, time => moment(time, now));
}

/** What comes from the server while it is listened to. `view` is told of each message, and why none comes. */
class Feed {
  constructor(view, config) {
    this.view = view;
    this.config = config;
    this.clientId = `widget-${Math.random().toString(36).slice(2)}`;
    this.refusals = 0;
  }

  start() {
    if (!this.on) {
      this.on = true;
      this.attempts = 0;
      this.refusals = Math.min(this.refusals, REFUSALS - 1); // one more try each time it comes into sight
      this.awaitNews();
      this.connect();
    }
  }

  stop() {
    this.on = false;
    clearTimeout(this.retry);
    clearTimeout(this.silence);
    const socket = this.socket;
    this.socket = null;
    socket?.close();
  }

  connect() {
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
    this.awaitNews();
    this.view.take(message);
  }

  awaitNews() {
    clearTimeout(this.silence);
    this.silence = setTimeout(() => {
      this.view.say('no news from the server');
      this.socket?.close();
    }, SILENCE_MS);
  }

  /** The stream was refused: ask once, to tell a proxy from a server that is away or has no guard. */
  async ask() {
    const response = await this.view.fetch('status').catch(() => null);
    const status = response?.ok ? await response.json().catch(() => null) : null;
    if (!this.on) {
      return;
    }
    if (status) {
      this.refusals += 1;
      this.awaitNews();
      this.view.take({ type: 'status', status });
    } else if (response?.status === 404 && !this.view.kernel) {
      this.view.end('This server has no GPU Guard.');
    } else {
      const problem = response ? `refused to answer (${response.status})` : 'cannot be reached';
      this.view.say(`The server ${problem}; trying again.`);
    }
    if (this.on && status && this.refusals >= REFUSALS) {
      this.retry = setTimeout(() => void this.ask(), POLL_MS);
    } else if (this.on) {
      this.connectLater();
    }
  }
}

class View {
  constructor(kernelId, el) {
    this.kernelId = kernelId;
    this.config = serverOf(document);
    this.feed = new Feed(this, this.config);
    this.root = document.createElement('div');
    this.root.className = 'gpu-guard';
    this.use = this.part('span', 'gpu-guard-use');
    this.words = this.part('span', 'gpu-guard-words');
    this.button = this.part('button', 'gpu-guard-keep');
    this.button.type = 'button';
    this.button.textContent = 'Keep';
    this.button.hidden = true;
    this.why = this.part('span', 'gpu-guard-why');
    el.append(this.root);
    this.kernel = null;
    this.skew = 0;
  }

  part(tag, name) {
    const node = document.createElement(tag);
    node.className = name;
    this.root.append(node);
    return node;
  }

  start() {
    if (!this.config) {
      this.say('This page has no GPU Guard: open the notebook in JupyterLab or Notebook 7.');
      return () => undefined;
    }
    if (!this.kernelId) {
      this.say('This kernel was not started by a Jupyter server, so no GPU Guard knows it.');
      return () => undefined;
    }
    const wake = () => this.wake();
    this.observer = new IntersectionObserver(entries => {
      this.seen = entries.at(-1).isIntersecting;
      this.wake();
    });
    this.observer.observe(this.root);
    document.addEventListener('visibilitychange', wake);
    this.button.addEventListener('click', () => void this.keep());
    return () => {
      this.stop();
      this.observer.disconnect();
      document.removeEventListener('visibilitychange', wake);
    };
  }

  /** Listen while somebody can see it, until there is nothing more to hear. */
  wake() {
    clearInterval(this.ticking);
    if (!this.seen || document.hidden || this.ended) {
      this.feed.stop();
      return;
    }
    this.feed.start();
    this.ticking = setInterval(() => this.draw(), 1000);
  }

  stop() {
    this.ended = true;
    this.wake();
  }

  /** Now, by the server's clock. */
  now() {
    return new Date(Date.now() + this.skew);
  }

  take(message) {
    const serverTime = Date.parse(message.server_time ?? message.status?.server_time);
    this.skew = Number.isNaN(serverTime) ? this.skew : serverTime - Date.now();
    const { kernels = [], simulated = this.simulated } = message.status ?? message;
    this.simulated = simulated;
    const kernel = [...kernels, message.kernel].find(k => k?.kernel_id === this.kernelId);
    if (kernel) {
      this.meet(kernel);
    } else if (message.type === 'culled' && message.kernel_id === this.kernelId) {
      this.endAt(this.now(), message.reason);
    } else if (message.status || message.removed?.includes(this.kernelId)) {
      void this.lookBack();
    }
  }

  meet(kernel) {
    this.kernel = kernel;
    this.note = null;
    if (kernel.state === 'culled') {
      this.endAt(kernel.state_since, kernel.state_reason);
    } else {
      this.draw();
    }
  }

  /** The server has no such kernel (any more): perhaps it wrote down that it shut it down. */
  async lookBack() {
    const before = this.kernel;
    const response = await this.fetch(`tombstones/${this.kernelId}`).catch(() => null);
    const stone = response?.ok ? await response.json().catch(() => null) : null;
    if (this.ended || this.kernel !== before) {
      return;
    }
    if (stone) {
      this.endAt(stone.ended_at, stone.reason);
    } else if (before) {
      this.end('This kernel has ended.');
    } else {
      this.say('The GPU Guard of this server does not know this kernel.');
    }
  }

  endAt(time, reason) {
    this.end(`shut down at ${moment(time, this.now())}`);
    this.put(this.why, localTimes(reason?.text ?? '', this.now()));
  }

  /** The last word: there is nothing more to hear. */
  end(text) {
    this.stop();
    this.say(text);
  }

  /** Say this instead of the kernel's state, until there is news of it. */
  say(text) {
    this.note = text;
    this.draw();
  }

  draw() {
    const { kernel, note } = this;
    const now = this.now();
    const problem = now < this.problem?.until ? this.problem.text : null;
    const shown = note ? null : kernel;
    const [words, level] = shown ? describe(shown, now) : [note ?? '', 'unknown'];
    const seconds = shown ? keepSeconds(shown) : 0;
    this.put(this.use, shown ? this.used(shown) : '');
    this.put(this.words, words);
    this.put(this.why, problem ?? localTimes(shown?.reason?.text ?? '', now));
    this.root.dataset.level = level;
    this.button.hidden = seconds <= 0;
    this.button.title = `Keep this kernel for ${span(seconds)} from now`;
  }

  /** Nothing is touched that reads the same: this is called every second. */
  put(node, text) {
    if (node.textContent !== text) {
      node.textContent = text;
    }
  }

  used(kernel) {
    const name = this.simulated ? 'GPU (simulated)' : 'GPU';
    const held = kernel.gpus.map(gpu => `${share(gpu.sm_ratio)} · ${size(gpu.memory_bytes)}`);
    return held.length ? `${name} ${held.join(', ')}` : '';
  }

  async keep() {
    const body = JSON.stringify({ seconds: keepSeconds(this.kernel), reason: '' });
    const path = `kernels/${this.kernelId}/keep-alive`;
    const response = await this.fetch(path, { method: 'POST', body }).catch(() => null);
    const answer = await response?.json().catch(() => null);
    const refused = answer?.message ?? `The server refused (${response?.status}).`;
    const text = response ? (response.ok ? null : refused) : 'The server cannot be reached.';
    this.problem = text && { text, until: this.now().getTime() + PROBLEM_MS };
    if (response?.ok) {
      this.meet({ ...this.kernel, keep_alive_until: answer.until, deadline: answer.until });
    }
    this.draw();
  }

  fetch(path, init = {}) {
    return fetch(endpoint(this.config.baseUrl, path), {
      credentials: 'same-origin',
      cache: 'no-store',
      headers: headers(this.config, document),
      ...init
    });
  }
}

function render({ model, el }) {
  return new View(model.get('kernel_id'), el).start();
}

export default { render };
