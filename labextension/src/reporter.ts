/**
 * Tells the server which documents are open here, which are unsaved, and that somebody is at one.
 *
 * A report follows a change of documents (settled for two seconds, at most every five) or an input (at once, at most
 * every minute, sooner while a warning stands). Nothing is reported because time passes: a page that nobody touches must not look like somebody.
 */

import type { IDisposable } from '@lumino/disposable';
import { type Api, ApiError } from './api';
import type { IDocuments } from './documents';
import type { IKernel, IReport, IWarningSeen } from './wire';

const SETTLE_MS = 2_000;
const BETWEEN_CHANGES_MS = 5_000;
const BETWEEN_INPUTS_MS = 60_000;
const FIRST_RETRY_MS = 5_000;
const LONGEST_RETRY_MS = 60_000;
const INPUTS = ['keydown', 'pointerdown', 'wheel'] as const;

/** A name for this page, not shared with another tab, gone with it. */
export function newClientId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, byte => byte.toString(16).padStart(2, '0')).join('');
}

export class Reporter implements IDisposable {
  constructor(
    private readonly api: Pick<Api, 'report' | 'leave'>,
    private readonly clientId: string,
    private readonly documents: IDocuments,
    /** A kernel as the server last told of it. */
    private readonly kernel: (id: string) => IKernel | null = () => null,
    private readonly clock: () => number = Date.now
  ) {
    documents.changed.connect(this.onChange, this);
    documents.frontChanged.connect(this.onChange, this);
    INPUTS.forEach(name => document.addEventListener(name, this.onInput, PASSIVE));
    window.addEventListener('focus', this.onFocus);
    document.addEventListener('visibilitychange', this.onFocus);
    window.addEventListener('pagehide', this.onLeave);
    window.addEventListener('pageshow', this.onReturn);
  }

  get isDisposed(): boolean {
    return this.disposed;
  }

  dispose(): void {
    this.disposed = true;
    clearTimeout(this.pending);
    this.documents.changed.disconnect(this.onChange, this);
    this.documents.frontChanged.disconnect(this.onChange, this);
    INPUTS.forEach(name => document.removeEventListener(name, this.onInput, PASSIVE));
    window.removeEventListener('focus', this.onFocus);
    document.removeEventListener('visibilitychange', this.onFocus);
    window.removeEventListener('pagehide', this.onLeave);
    window.removeEventListener('pageshow', this.onReturn);
  }

  /** The server has forgotten this page (it was restarted, or this page was cut off): say everything again. */
  reintroduce(): void {
    this.lastSaid = '';
    this.onChange();
  }

  /** Tell at once, and once, that a warning was seen. That is no input: it says nothing of when the last one was. */
  saw(seen: IWarningSeen): void {
    this.unsaid.push(seen);
    this.send();
  }

  private onChange(): void {
    clearTimeout(this.pending);
    const earliest = this.lastReport + BETWEEN_CHANGES_MS - this.clock();
    this.pending = setTimeout(() => this.sendIfNew(), Math.max(SETTLE_MS, earliest));
  }

  private readonly onInput = (): void => {
    this.lastInput = this.clock();
    const known = this.reportedInput;
    const focused = this.focusedKernel();
    if (focused !== null && (known === null || this.lastInput - known >= this.between(focused))) {
      this.send();
    }
  };

  /** Once a minute is often enough, but not where a minute decides: a warning, or a short timeout. */
  private between(kernelId: string): number {
    const kernel = this.kernel(kernelId);
    if (!kernel) {
      return BETWEEN_INPUTS_MS;
    }
    const timeout = kernel.policy.idle_timeout_seconds * 1000;
    const share = timeout > 0 ? timeout / 20 : BETWEEN_INPUTS_MS;
    const most = kernel.state === 'warned' ? SETTLE_MS : BETWEEN_INPUTS_MS;
    return Math.max(1_000, Math.min(most, share));
  }

  private readonly onFocus = (): void => this.onChange();

  private readonly onLeave = (): void => {
    clearTimeout(this.pending);
    if (this.lastSaid !== '') {
      this.lastSaid = '';
      this.api.leave(this.clientId).catch(ignore);
    }
  };

  /** The browser may bring a page back that had been left. */
  private readonly onReturn = (event: PageTransitionEvent): void => {
    if (event.persisted) {
      this.reintroduce();
    }
  };

  private sendIfNew(): void {
    const report = this.report();
    if (report.documents.length === 0 && report.visible && this.lastSaid === '') {
      return; // nothing open here, and the server does not think otherwise
    }
    if (said(report) !== this.lastSaid) {
      this.send();
    }
  }

  private send(): void {
    clearTimeout(this.pending);
    const report = this.report();
    const seen = this.unsaid.splice(0);
    if (seen.length > 0) {
      report.warnings_seen = seen;
    }
    const known = this.reportedInput;
    this.lastReport = this.clock();
    this.reportedInput = this.lastInput;
    this.lastSaid = said(report);
    this.api.report(this.clientId, report).then(
      () => {
        this.retry = FIRST_RETRY_MS;
      },
      (error: unknown) => {
        if (!(error instanceof ApiError && error.status === 400)) {
          this.unsaid.unshift(...seen); // but what an older server does not understand is not said again
        }
        this.onUnheard(known);
      }
    );
  }

  /** The server did not take it: a window that it does not know of is asked for nothing, so it is said again. */
  private onUnheard(known: number | null): void {
    this.lastSaid = '';
    this.reportedInput = known;
    if (!this.disposed) {
      clearTimeout(this.pending);
      this.pending = setTimeout(() => this.send(), this.retry);
      this.retry = Math.min(this.retry * 2, LONGEST_RETRY_MS);
    }
  }

  private report(): IReport {
    return {
      documents: this.documents.all().map(({ context, kernelId }) => ({
        path: context.localPath,
        kernel_id: kernelId,
        dirty: Boolean(context.model.dirty)
      })),
      focused_kernel_id: this.focusedKernel(),
      visible: !document.hidden,
      input_age_seconds:
        this.lastInput === null ? null : Math.max(0, (this.clock() - this.lastInput) / 1000)
    };
  }

  private focusedKernel(): string | null {
    const looking = !document.hidden && document.hasFocus();
    return looking ? (this.documents.front()?.kernelId ?? null) : null;
  }

  private disposed = false;
  private pending: ReturnType<typeof setTimeout> | undefined;
  private lastInput: number | null = null;
  /** The last input that the server has been told of. */
  private reportedInput: number | null = null;
  /** Warnings seen that the server has not been told of. */
  private readonly unsaid: IWarningSeen[] = [];
  private lastReport = -Infinity;
  private lastSaid = '';
  private retry = FIRST_RETRY_MS;
}

/** What of a report is news when it changes. */
function said({ documents, focused_kernel_id, visible }: IReport): string {
  return JSON.stringify([documents, focused_kernel_id, visible]);
}

const PASSIVE = { passive: true, capture: true } as const;

function ignore(): void {
  // The server is away: it forgets this page by itself.
}
