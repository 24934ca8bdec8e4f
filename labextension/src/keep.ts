/** What a user can do with a kernel: keep it, save its documents, shut it down. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import * as amounts from './amounts';
import { type Api, ApiError } from './api';
import type { IDocuments } from './documents';
import { isKept } from './countdown';
import { choose } from './menu';
import type { GuardModel } from './model';
import type { IKernel } from './wire';
import { list, sentence } from './words';

export interface IKeepChoice {
  label: string;
  seconds: number;
}

/** The longest that a kernel may be kept now; 0 where its user may not keep it. */
export function longestKeep(kernel: IKernel, mostAtOnce: number | null): number {
  const once = kernel.keep_alive_max_seconds ?? mostAtOnce ?? Infinity;
  const longest = Math.min(once, kernel.keep_alive_remaining_seconds ?? once);
  return Number.isFinite(longest) ? Math.floor(longest) : 0;
}

/** As long as it may go unused: a plain "Keep" sets its clock back to the start. */
export function plainKeep(kernel: IKernel, longest: number): number {
  const timeout = kernel.policy.idle_timeout_seconds || 3600;
  return Math.min(timeout, longest);
}

/** What "Keep for…" offers: nothing that the server would refuse. */
export function keepChoices(now: Date, longest: number, t: TranslationBundle): IKeepChoice[] {
  const tomorrow = new Date(now);
  tomorrow.setDate(tomorrow.getDate() + 1);
  tomorrow.setHours(10, 0, 0, 0);
  const wanted = [
    { label: t.__('1 hour'), seconds: 3600 },
    { label: t.__('4 hours'), seconds: 4 * 3600 },
    {
      label: t.__('until tomorrow, %1', amounts.clock(tomorrow, tomorrow)),
      seconds: Math.round((tomorrow.getTime() - now.getTime()) / 1000)
    }
  ];
  const allowed = wanted.filter(choice => choice.seconds <= longest);
  const most = {
    label: t.__('%1 (the most allowed)', amounts.duration(longest, t)),
    seconds: longest
  };
  return allowed.length === wanted.length ? allowed : [...allowed, most];
}

export class Actions {
  constructor(
    private readonly model: GuardModel,
    private readonly api: Api,
    private readonly documents: IDocuments,
    private readonly t: TranslationBundle
  ) {}

  longest(kernel: IKernel): number {
    return longestKeep(kernel, this.model.status?.limits.keep_alive_max_seconds ?? null);
  }

  isKept(kernel: IKernel): boolean {
    return isKept(kernel, this.model.now());
  }

  async keep(kernel: IKernel): Promise<boolean> {
    return this.keepFor(kernel, plainKeep(kernel, this.longest(kernel)));
  }

  /** Ask for how long in a menu beside `anchor`, then keep. False when it was not kept. */
  async askAndKeep(kernel: IKernel, anchor: Element): Promise<boolean> {
    const choices = keepChoices(this.model.now(), this.longest(kernel), this.t);
    const labels = choices.map(choice => choice.label);
    const chosen = await choose(labels, this.t.__('Keep %1 for', nameOf(kernel)), anchor);
    const choice = chosen === null ? undefined : choices[chosen];
    return choice ? this.keepFor(kernel, choice.seconds) : false;
  }

  async stopKeeping(kernel: IKernel): Promise<boolean> {
    return this.attempt(() => this.api.endKeepAlive(kernel.kernel_id));
  }

  /** Save as the user would; dialogs may come, somebody is there to answer them. */
  async saveNow(kernelId: string): Promise<void> {
    const unsaved = this.documents
      .all()
      .filter(d => d.kernelId === kernelId && d.context.model.dirty);
    await Promise.allSettled(unsaved.map(({ context }) => context.save()));
  }

  /** True when it was confirmed and the server has begun. */
  async askAndShutDown(kernel: IKernel): Promise<boolean> {
    const answer = await showDialog({
      title: this.t.__('Shut down %1 now?', nameOf(kernel)),
      body: [this.whatIsSaved(kernel), this.whatIsLost(kernel)].join(' '),
      buttons: [
        Dialog.cancelButton(),
        Dialog.warnButton({ label: this.t.__('Save and shut down') })
      ],
      defaultButton: 0
    });
    return answer.button.accept ? this.attempt(() => this.api.shutDown(kernel.kernel_id)) : false;
  }

  /** Names of the unsaved documents of the kernel, here and in other windows, each once. */
  unsaved(kernel: IKernel): string[] {
    const here = this.documents
      .all()
      .filter(d => d.kernelId === kernel.kernel_id && d.context.model.dirty)
      .map(d => d.context.localPath);
    const elsewhere = kernel.documents.filter(d => d.dirty).map(d => d.path);
    return [...new Set([...here, ...elsewhere])].map(baseName);
  }

  whatIsSaved(kernel: IKernel): string {
    const names = this.unsaved(kernel);
    return names.length
      ? this.t.__('Saved first: %1.', list(names))
      : this.t.__('Nothing is unsaved.');
  }

  whatIsLost(kernel: IKernel): string {
    return kernel.has_checkpoint
      ? this.t.__('Your checkpoint function runs first; other variables and GPU memory are lost.')
      : this.t.__('Variables and GPU memory are lost (no checkpoint function).');
  }

  private async keepFor(kernel: IKernel, seconds: number): Promise<boolean> {
    return this.attempt(() => this.api.keepAlive(kernel.kernel_id, seconds));
  }

  private async attempt(call: () => Promise<unknown>): Promise<boolean> {
    try {
      await call();
      return true;
    } catch (error) {
      Notification.error(this.explain(error), { autoClose: 10_000 });
      return false;
    }
  }

  private explain(error: unknown): string {
    if (error instanceof ApiError) {
      return error.reason ? sentence(error.reason, this.t, this.model.now()) : error.message;
    }
    return this.t.__('The server cannot be reached.');
  }
}

/** How a kernel is called on screens: by its notebook. */
export function nameOf(kernel: { notebooks: string[]; name: string }): string {
  const notebook = kernel.notebooks[0];
  return notebook ? baseName(notebook) : kernel.name;
}

export function baseName(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}
