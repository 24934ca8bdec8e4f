/**
 * The page's half of GpuGuardWidget: asks the server for the kernel's status and shows it.
 *
 * One file without imports, as it travels through the kernel. It asks only while it can be seen, and never talks to
 * the kernel, since that would count as activity there.
 */

const POLL_MS = 5000;

/** The server of this page, or null where the page is none of Jupyter's (VS Code, a static copy). */
export function serverOf(doc) {
  const element = doc.getElementById("jupyter-config-data");
  try {
    const config = JSON.parse(element?.textContent ?? "");
    return typeof config.baseUrl === "string" ? config : null;
  } catch {
    return null;
  }
}

function endpoint(config, path) {
  return `${config.baseUrl.replace(/\/?$/, "/")}gpu-guard/api/v1/${path}`;
}

function headers(config, doc) {
  const found = { "Content-Type": "application/json" };
  const xsrf = /(?:^|; )_xsrf=([^;]*)/.exec(doc.cookie);
  if (xsrf) {
    found["X-XSRFToken"] = xsrf[1];
  }
  if (config.token) {
    found.Authorization = `token ${config.token}`;
  }
  return found;
}

export function span(seconds) {
  if (typeof seconds !== "number" || !Number.isFinite(seconds)) {
    return "?";
  }
  const s = Math.max(0, Math.floor(seconds));
  if (s < 120) {
    return `${s} s`;
  }
  const minutes = Math.floor(s / 60);
  const rest = minutes % 60 ? ` ${minutes % 60} min` : "";
  return minutes < 60
    ? `${minutes} min`
    : `${Math.floor(minutes / 60)} h${rest}`;
}

function moment(time, now) {
  const at = new Date(time);
  return new Intl.DateTimeFormat(undefined, {
    hour: "2-digit",
    minute: "2-digit",
    timeZoneName: "short",
    ...(at.toDateString() === now.toDateString() ? {} : { weekday: "short" }),
  }).format(at);
}

function size(value) {
  return typeof value === "number"
    ? `${(value / 2 ** 30).toFixed(1)} GiB`
    : "?";
}

function share(ratio) {
  return typeof ratio === "number" ? `${Math.round(ratio * 100)} %` : "?";
}

function levelOf(remaining, leads) {
  const reached = leads.filter((lead) => remaining <= lead).length;
  if (remaining <= 0 || (reached > 0 && reached === leads.length)) {
    return "urgent";
  }
  return reached === 0 ? "ok" : reached === 1 ? "quiet" : "notice";
}

const UNDER_WAY = {
  saving: ["saving, then shuts down", "urgent"],
  culling: ["shutting down", "urgent"],
  culled: ["shut down", "ok"],
  failed: ["could not be shut down", "notice"],
};

/** Words and level of one kernel at one moment. */
export function describe(kernel, now) {
  if (UNDER_WAY[kernel.state]) {
    return UNDER_WAY[kernel.state];
  }
  const foreign =
    Boolean(kernel.deadline) && (kernel.deadline_source ?? "guard") !== "guard";
  if (kernel.mode === "observe" && !foreign) {
    return ["Observing: nothing will be shut down", "ok"];
  }
  const regardless = ["max_runtime", "asked_by_user"].includes(
    kernel.deadline_reason?.code,
  );
  if (
    kernel.verdict === "unknown" &&
    !foreign &&
    !(kernel.deadline && regardless)
  ) {
    return ["can't tell – not counting", "unknown"];
  }
  return counting(kernel, now, foreign) ?? resting(kernel, now);
}

function counting(kernel, now, foreign) {
  const at =
    kernel.deadline ?? (kernel.mode === "warn" ? kernel.would_act : null);
  if (!at) {
    return null;
  }
  const remaining = (Date.parse(at) - now.getTime()) / 1000;
  const level = levelOf(remaining, kernel.policy.warn_before_seconds);
  const counts = kernel.verdict === "idle" || kernel.verdict === "stalled";
  if (level === "ok" && (!counts || isKept(kernel, now))) {
    return null;
  }
  if (kernel.mode === "warn" && !foreign) {
    return [`unused for ${span(kernel.idle_seconds)} (only warning)`, level];
  }
  return remaining > 0
    ? [`shuts down in ${span(remaining)} (at ${moment(at, now)})`, level]
    : ["shuts down any moment", level];
}

function resting(kernel, now) {
  if (isKept(kernel, now)) {
    return [`kept until ${moment(kernel.keep_alive_until, now)}`, "ok"];
  }
  if (!kernel.deadline && kernel.deadline_reason?.code === "out_of_scope") {
    return ["holds no GPU", "ok"];
  }
  const words = {
    stalled: ["stuck?", "notice"],
    idle: [`unused for ${span(kernel.idle_seconds)}`, "ok"],
    unknown: ["can't tell – not counting", "unknown"],
  };
  return words[kernel.verdict] ?? ["in use", "ok"];
}

function isKept(kernel, now) {
  return (
    Boolean(kernel.keep_alive_until) &&
    Date.parse(kernel.keep_alive_until) > now.getTime()
  );
}

/** Seconds that "Keep" asks for; 0 where this kernel may not be kept. */
export function keepSeconds(kernel, limits) {
  const most = Math.min(
    kernel.keep_alive_max_seconds ?? limits?.keep_alive_max_seconds ?? Infinity,
    kernel.keep_alive_remaining_seconds ?? Infinity,
  );
  return Math.floor(Math.min(kernel.policy.idle_timeout_seconds || 3600, most));
}

/** The server's English sentence, with its times as people read them. */
export function localTimes(text, now) {
  return text.replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, (time) => moment(time, now));
}

function mayKeep(kernel) {
  return (
    kernel.mode !== "observe" &&
    kernel.state !== "culling" &&
    kernel.state !== "culled"
  );
}

class View {
  constructor(kernelId, el) {
    this.kernelId = kernelId;
    this.root = document.createElement("div");
    this.root.className = "gpu-guard";
    this.use = this.part("span", "gpu-guard-use");
    this.words = this.part("span", "gpu-guard-words");
    this.button = this.part("button", "gpu-guard-keep");
    this.button.type = "button";
    this.button.textContent = "Keep";
    this.button.hidden = true;
    this.why = this.part("span", "gpu-guard-why");
    el.append(this.root);
    this.config = serverOf(document);
    this.seen = false;
  }

  part(tag, name) {
    const node = document.createElement(tag);
    node.className = name;
    this.root.append(node);
    return node;
  }

  start() {
    if (!this.config) {
      this.say(
        "This page has no GPU Guard: open the notebook in JupyterLab or Notebook 7.",
      );
      return () => undefined;
    }
    if (!this.kernelId) {
      this.say(
        "This kernel was not started by a Jupyter server, so no GPU Guard knows it.",
      );
      return () => undefined;
    }
    const wake = () => this.wake();
    this.observer = new IntersectionObserver((entries) => {
      this.seen = entries.at(-1).isIntersecting;
      this.wake();
    });
    this.observer.observe(this.root);
    document.addEventListener("visibilitychange", wake);
    this.button.addEventListener("click", () => void this.keep());
    return () => {
      this.ended = true;
      clearTimeout(this.timer);
      this.observer.disconnect();
      document.removeEventListener("visibilitychange", wake);
    };
  }

  wake() {
    clearTimeout(this.timer);
    if (!this.ended && this.seen && !document.hidden) {
      void this.poll();
    }
  }

  async poll() {
    const again = await this.refresh();
    clearTimeout(this.timer);
    if (again && !this.ended && this.seen && !document.hidden) {
      this.timer = setTimeout(() => void this.poll(), POLL_MS);
    }
  }

  /** False where asking again is of no use. */
  async refresh() {
    let response;
    try {
      response = await this.fetch("status");
    } catch {
      this.say("The server cannot be reached; trying again.");
      return true;
    }
    if (response.status === 404) {
      this.say("This server has no GPU Guard.");
      return false;
    }
    if (!response.ok) {
      this.say(
        `The server refused to answer (${response.status}); trying again.`,
      );
      return true;
    }
    this.show(await response.json());
    return true;
  }

  show(status) {
    const now = new Date(status.server_time);
    const kernel = status.kernels.find(
      ({ kernel_id }) => kernel_id === this.kernelId,
    );
    if (!kernel) {
      this.say(
        this.kernel
          ? "This kernel has ended."
          : "The GPU Guard of this server does not know this kernel.",
      );
      return;
    }
    this.kernel = kernel;
    this.limits = status.limits;
    const [words, level] = describe(kernel, now);
    const name = status.simulated ? "GPU (simulated)" : "GPU";
    const held = kernel.gpus.map(
      (gpu) => `${share(gpu.sm_ratio)} · ${size(gpu.memory_bytes)}`,
    );
    this.use.textContent = held.length ? `${name} ${held.join(", ")}` : "";
    this.words.textContent = words;
    this.why.textContent = localTimes(kernel.reason?.text ?? "", now);
    this.root.dataset.level = level;
    this.button.hidden =
      !mayKeep(kernel) || keepSeconds(kernel, status.limits) <= 0;
  }

  say(text) {
    this.use.textContent = "";
    this.words.textContent = text;
    this.why.textContent = "";
    this.button.hidden = true;
    this.root.dataset.level = "unknown";
  }

  async keep() {
    const seconds = keepSeconds(this.kernel, this.limits);
    const body = JSON.stringify({ seconds, reason: "" });
    try {
      const path = `kernels/${this.kernelId}/keep-alive`;
      const response = await this.fetch(path, { method: "POST", body });
      if (!response.ok) {
        const answer = await response.json().catch(() => ({}));
        this.why.textContent =
          answer.message ?? `The server refused (${response.status}).`;
        return;
      }
    } catch {
      this.why.textContent = "The server cannot be reached.";
      return;
    }
    await this.refresh();
  }

  fetch(path, init = {}) {
    return fetch(endpoint(this.config, path), {
      credentials: "same-origin",
      cache: "no-store",
      headers: headers(this.config, document),
      ...init,
    });
  }
}

function render({ model, el }) {
  return new View(model.get("kernel_id"), el).start();
}

export default { render };
