/**
 * The page's half of GpuGuardWidget: shows the state of one kernel, and keeps it for whoever presses the button.
 *
 * It listens to the server only while it can be seen, and never talks to the kernel, since that would count as activity
 * there.
 */

import { endpoint, Feed, headers, serverOf } from './widget_feed.js';
import { describe, keepSeconds, localTimes, moment, share, size, span } from './widget_words.js';

const PROBLEM_MS = 10_000;

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
    const body = JSON.stringify({
      seconds: keepSeconds(this.kernel),
      reason: ''
    });
    const path = `kernels/${this.kernelId}/keep-alive`;
    const response = await this.fetch(path, { method: 'POST', body }).catch(() => null);
    const answer = await response?.json().catch(() => null);
    const refused = answer?.message ?? `The server refused (${response?.status}).`;
    const text = response ? (response.ok ? null : refused) : 'The server cannot be reached.';
    this.problem = text && { text, until: this.now().getTime() + PROBLEM_MS };
    this.draw();
    this.feed.hurry();
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
