/**
 * One notification for each kernel that is about to be shut down, changed in place at each lead.
 *
 * Driven by the state, not by messages, so that a page that was cut off, or that polls, warns too. The first of
 * several leads is quiet: colour, no notification. When the kernel comes into use again the notification goes.
 */

import type { Notification, NotificationManager } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { countdown } from './countdown';
import type { IDocuments } from './documents';
import { type Actions, nameOf } from './keep';
import type { GuardModel } from './model';
import { whenSeen } from './sight';
import type { IKernel, IWarning } from './wire';
import { still } from './words';

type Manager = Pick<NotificationManager, 'notify' | 'update' | 'dismiss' | 'has'>;

interface IShown {
  notification: string;
  /** Time of the warning shown; one that the user has closed is not shown again. */
  at: string;
  /** No longer wait until it is seen. */
  forget: () => void;
  /** The button that was pressed last. */
  button: Element | null;
}

export class Warnings {
  constructor(
    private readonly model: GuardModel,
    private readonly documents: IDocuments,
    private readonly actions: Actions,
    private readonly manager: Manager,
    private readonly t: TranslationBundle,
    private readonly clientId: string
  ) {
    model.changed.connect(this.refresh, this);
  }

  /** Whether the user wants notifications. */
  set wanted(wanted: boolean) {
    this._wanted = wanted;
    this.refresh();
  }

  private refresh(): void {
    for (const [kernelId] of this.shown) {
      const kernel = this.model.kernel(kernelId);
      if (!this._wanted || !kernel || loudWarning(kernel) === null) {
        this.withdraw(kernelId);
      }
    }
    if (this._wanted) {
      this.model.kernels.filter(kernel => this.isOurs(kernel)).forEach(kernel => this.show(kernel));
    }
  }

  private withdraw(kernelId: string): void {
    const shown = this.shown.get(kernelId);
    this.shown.delete(kernelId);
    shown?.forget();
    if (shown && this.manager.has(shown.notification)) {
      // Its button goes with it: whoever pressed that goes on in the notebook.
      if (shown.button && document.activeElement === shown.button) {
        this.documents.focusFront();
      }
      this.manager.dismiss(shown.notification);
    }
  }

  private show(kernel: IKernel): void {
    const warning = loudWarning(kernel);
    const shown = this.shown.get(kernel.kernel_id);
    if (warning === null || shown?.at === warning.at) {
      return;
    }
    const message = this.text(kernel);
    const actions = this.buttons(kernel);
    if (shown && this.manager.has(shown.notification)) {
      const id = shown.notification;
      this.manager.update({ id, message, type: 'warning', actions, autoClose: false });
      shown.at = warning.at;
      this.tellWhenSeen(kernel.kernel_id, warning, shown);
      return;
    }
    shown?.forget();
    const notification = this.manager.notify(message, 'warning', { actions, autoClose: false });
    const now = { notification, at: warning.at, forget: () => undefined, button: null };
    this.shown.set(kernel.kernel_id, now);
    this.tellWhenSeen(kernel.kernel_id, warning, now);
  }

  private tellWhenSeen(kernelId: string, warning: IWarning, shown: IShown): void {
    shown.forget();
    if (!warning.seen_at) {
      const seen = { kernel_id: kernelId, given_at: warning.at };
      shown.forget = whenSeen(shown.notification, () => this.model.sawWarning(seen));
    }
  }

  /** The windows that have it open warn; where none has, all do. */
  private isOurs(kernel: IKernel): boolean {
    const here = this.documents.all().some(open => open.kernelId === kernel.kernel_id);
    return here || kernel.documents.every(document => document.client_id === this.clientId);
  }

  /** What happens, when, what is saved, what is lost: in that order, for long texts are cut at 140 characters. */
  private text(kernel: IKernel): string {
    const now = this.model.now();
    const name = shortened(nameOf(kernel));
    const words = still(countdown(kernel, now), this.t, now);
    const parts = [words.endsWith('?') ? `${name}: ${words}` : this.t.__('%1 %2.', name, words)];
    if (kernel.mode === 'enforce') {
      parts.push(this.saved(kernel), this.actions.whatIsLost(kernel));
    }
    return parts.join(' ');
  }

  /** Shorter than elsewhere. */
  private saved(kernel: IKernel): string {
    const [first, ...more] = this.actions.unsaved(kernel);
    if (first === undefined) {
      return this.t.__('Nothing is unsaved.');
    }
    if (more.length > 0) {
      return this.t.__('%1 documents are saved first.', more.length + 1);
    }
    return first === nameOf(kernel)
      ? this.t.__('It is saved first.')
      : this.t.__('%1 is saved first.', shortened(first));
  }

  private buttons(kernel: IKernel): Notification.IAction[] {
    const { actions, t } = this;
    const staying = (act: (button: Element) => Promise<unknown>) => (event: MouseEvent) =>
      void this.stay(kernel.kernel_id, event, act);
    const keeps: Notification.IAction[] = [
      {
        label: t.__('Keep'),
        caption: t.__('Start its countdown afresh'),
        displayType: 'accent',
        callback: staying(() => actions.keep(kernel))
      },
      {
        label: t.__('Keep for…'),
        caption: t.__('Choose how long to keep it'),
        callback: staying(button => actions.askAndKeep(kernel, button))
      }
    ];
    return [
      ...(actions.longest(kernel) > 0 ? keeps : []),
      {
        label: t.__('Save now'),
        caption: actions.whatIsSaved(kernel),
        callback: staying(() => actions.saveNow(kernel.kernel_id))
      },
      {
        label: t.__('Shut down now'),
        caption: actions.whatIsLost(kernel),
        displayType: 'warn',
        callback: staying(() => actions.askAndShutDown(kernel))
      }
    ];
  }

  /** The notification stays: it goes when the server says that the kernel is kept, in use, or gone. */
  private async stay(
    kernelId: string,
    event: MouseEvent,
    act: (button: Element) => Promise<unknown>
  ): Promise<void> {
    event.preventDefault();
    const pressed = event.currentTarget;
    const button = pressed instanceof Element ? pressed : document.body;
    const shown = this.shown.get(kernelId);
    if (shown) {
      shown.button = button;
    }
    await act(button);
    // It may have gone meanwhile, and what had the focus with it.
    const focus = document.activeElement;
    if (!this.shown.has(kernelId) && (focus === button || focus === document.body)) {
      this.documents.focusFront();
    }
  }

  private readonly shown = new Map<string, IShown>();
  private _wanted = true;
}

/** The last warning given, where it is one to be shown; null where there is none or it is a quiet one. */
export function loudWarning(kernel: IKernel): IWarning | null {
  const last = kernel.warnings.at(-1);
  if (last?.cause === 'stalled' && last.lead_seconds === null && kernel.verdict === 'stalled') {
    return last;
  }
  if (!last || (kernel.state !== 'warned' && kernel.state !== 'saving')) {
    return null;
  }
  const leads = kernel.policy.warn_before_seconds;
  const quiet = leads.length > 1 && (last.lead_seconds ?? 0) >= Math.max(...leads);
  return quiet ? null : last;
}

function shortened(name: string): string {
  return name.length > 24 ? `${name.slice(0, 10)}…${name.slice(-13)}` : name;
}
