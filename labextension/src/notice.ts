/**
 * Says afterwards that a kernel was shut down: why, when, what was saved where, what was lost and how to go on.
 *
 * At once in the windows that had it open, and once in a browser when one of its notebooks is opened later. Without
 * this JupyterLab would start an empty kernel with the next cell, silently.
 */

import {
  Dialog,
  type Notification,
  type NotificationManager,
  showDialog
} from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';
import { type ISignal, Signal } from '@lumino/signaling';
import * as amounts from './amounts';
import type { Api } from './api';
import { linesWidget } from './details';
import type { IDocuments } from './documents';
import { baseName, nameOf } from './keep';
import type { GuardModel, IFailure } from './model';
import { remember, remembered } from './remembered';
import { whenSeen } from './sight';
import type { IKernel, ITombstone } from './wire';
import { list, lostWord, sentence } from './words';

/** A kernel this much older than the opening of its notebook was not started by it. */
const BY_THIS_OPENING_MS = 60_000;
/** A notice that was there for a shorter time has not been read. */
const READING_MS = 5_000;

type TombstoneApi = Pick<Api, 'tombstone' | 'tombstonesOf' | 'recoveryUrl'>;
type Manager = Pick<NotificationManager, 'notify' | 'update' | 'dismiss' | 'has'>;

interface IShown {
  notification: string;
  notebooks: string[];
  /** Since when it has stood on this page with somebody who may have been looking; null where it has not yet. */
  seen: number | null;
  /** No longer wait until it is seen. */
  forget: () => void;
}

export class Notices {
  constructor(
    private readonly model: GuardModel,
    private readonly api: TombstoneApi,
    private readonly documents: IDocuments,
    private readonly manager: Manager,
    private readonly open: (path: string) => void,
    private readonly t: TranslationBundle,
    private readonly clientId: string
  ) {
    model.ended.connect((_, kernelId) => void this.onEnded(kernelId));
    model.failed.connect((_, failure) => this.onFailed(failure));
    documents.opened.connect((_, context) => this.onOpened(context.localPath));
    documents.ran.connect((_, path) => this.withdraw([path]));
  }

  /** `endedAt` gives another answer for some notebook. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** When the last kernel of a notebook was shut down, as far as this page knows. */
  endedAt(path: string): string | null {
    return this.last.get(path) ?? null;
  }

  private async onEnded(kernelId: string): Promise<void> {
    const kernel = this.model.lastSeen(kernelId);
    try {
      const stone = await this.api.tombstone(kernelId);
      this.note(stone);
      if (this.isOurs(stone.notebooks, kernel)) {
        this.show(stone);
      }
    } catch {
      // Kept by the server, and shown when the notebook is opened the next time.
    }
  }

  /** One notification for each kernel, changed in place when it fails again. */
  private onFailed({ kernelId, reason }: IFailure): void {
    const kernel = this.model.kernel(kernelId);
    if (!this.wanted || !kernel || !this.isOurs(kernel.notebooks, kernel)) {
      return;
    }
    const why = sentence(reason, this.t, this.model.now());
    const message = this.t.__('%1 was not shut down. %2', nameOf(kernel), why);
    const id = this.failures.get(kernelId);
    if (id === undefined || !this.manager.update({ id, message, type: 'warning' })) {
      const shown = this.manager.notify(message, 'warning', { autoClose: 30_000 });
      this.failures.set(kernelId, shown);
    }
  }

  /** The windows that have it open tell of it; where none has, all do. */
  private isOurs(notebooks: string[], kernel: IKernel | null): boolean {
    const open = new Set(this.documents.paths());
    const elsewhere = kernel?.documents.some(d => d.client_id !== this.clientId) ?? false;
    return notebooks.some(path => open.has(path)) || !elsewhere;
  }

  private onOpened(path: string): void {
    if (!this.asked.has(path)) {
      this.asked.add(path);
      const opened = this.model.now().getTime();
      this.whenAnswered(() => void this.lookBack(path, opened));
    }
  }

  /** A notebook that is restored with the page opens before the server has said that it has a guard. */
  private whenAnswered(callback: () => void): void {
    if (this.model.status) {
      callback();
      return;
    }
    const once = (): void => {
      this.model.refreshed.disconnect(once);
      callback();
    };
    this.model.refreshed.connect(once);
  }

  private async lookBack(path: string, opened: number): Promise<void> {
    try {
      const stones = await this.api.tombstonesOf(path);
      const newest = stones.reduce<ITombstone | null>(
        (a, b) => (a && Date.parse(a.ended_at) >= Date.parse(b.ended_at) ? a : b),
        null
      );
      if (
        newest &&
        !remembered().includes(newest.kernel_id) &&
        !this.isOver(newest, path, opened)
      ) {
        this.note(newest);
        this.show(newest);
      }
    } catch {
      this.asked.delete(path);
    }
  }

  /** Somebody has gone on since: a kernel was started after that end, and not just now by this opening. */
  private isOver(stone: ITombstone, path: string, opened: number): boolean {
    const kernel = this.model.kernels.find(({ notebooks }) => notebooks.includes(path));
    const started = Date.parse(kernel?.started ?? '');
    return started > Date.parse(stone.ended_at) && opened - started > BY_THIS_OPENING_MS;
  }

  private note(stone: ITombstone): void {
    stone.notebooks.forEach(path => this.last.set(path, stone.ended_at));
    this._changed.emit();
  }

  private show(stone: ITombstone): void {
    remember(stone.kernel_id);
    if (!this.wanted) {
      return;
    }
    this.withdraw(stone.notebooks);
    const text = noticeText(stone, this.t, this.model.now());
    const actions = this.buttons(stone);
    const notification = this.manager.notify(text, 'info', { autoClose: false, actions });
    const shown: IShown = { notification, notebooks: stone.notebooks, seen: null, forget: nothing };
    this.shown.push(shown);
    shown.forget = whenSeen(notification, () => {
      shown.seen = this.model.now().getTime();
    });
  }

  /** Notices of these notebooks are of no more use: somebody has gone on, or a newer one comes. What nobody can have
   * read stays. */
  private withdraw(paths: string[]): void {
    const before = this.model.now().getTime() - READING_MS;
    const over = ({ seen, notebooks }: IShown): boolean =>
      seen !== null && seen <= before && notebooks.some(path => paths.includes(path));
    this.shown = this.shown.filter(shown => {
      const there = this.manager.has(shown.notification);
      if (there && !over(shown)) {
        return true;
      }
      shown.forget();
      this.manager.dismiss(shown.notification);
      return false;
    });
  }

  private buttons(stone: ITombstone): Notification.IAction[] {
    const copy = stone.saved.find(saved => saved.recovery_path !== null);
    const stored = stone.saved.find(saved => saved.recovery_id !== null && !saved.recovery_path);
    const buttons: Notification.IAction[] = [];
    if (copy?.recovery_path) {
      const path = copy.recovery_path;
      buttons.push({
        label: this.t.__('Open the copy'),
        caption: path,
        callback: () => this.open(path)
      });
    }
    if (stored?.recovery_id) {
      const url = this.api.recoveryUrl(stored.recovery_id);
      buttons.push({
        label: this.t.__('Download the copy'),
        callback: () => download(url)
      });
    }
    buttons.push({ label: this.t.__('Details'), callback: event => this.onDetails(event, stone) });
    return buttons;
  }

  private onDetails(event: MouseEvent, stone: ITombstone): void {
    event.preventDefault();
    void showDialog({
      title: this.t.__('%1 was shut down', nameOf(stone)),
      body: linesWidget(noticeLines(stone, this.t, this.model.now())),
      buttons: [Dialog.okButton({ label: this.t.__('Close') })]
    });
  }

  /** Whether the user wants notifications. */
  wanted = true;
  private readonly _changed = new Signal<this, void>(this);
  private shown: IShown[] = [];
  private readonly failures = new Map<string, string>();
  private readonly asked = new Set<string>();
  private readonly last = new Map<string, string>();
}

/** The short text; the rest is in the details. */
export function noticeText(stone: ITombstone, t: TranslationBundle, now: Date): string {
  const when = amounts.clock(stone.ended_at, now);
  const parts = [t.__('%1 was shut down at %2.', nameOf(stone), when)];
  if (stone.reason) {
    parts.push(sentence(stone.reason, t, now));
  }
  parts.push(...lostLines(stone, t));
  return parts.join(' ');
}

/** Everything, line by line: why, warned when, each document, what was lost, what is left, how to go on. */
export function noticeLines(stone: ITombstone, t: TranslationBundle, now: Date): string[] {
  const warned = stone.warnings.map(warning => amounts.clock(warning.at, now));
  return [
    t.__('%1 was shut down at %2.', nameOf(stone), amounts.clock(stone.ended_at, now)),
    ...(stone.reason ? [sentence(stone.reason, t, now)] : []),
    ...(warned.length ? [t.__('Warned at %1.', list(warned))] : []),
    ...stone.saved.map(saved => savedLine(saved, t)),
    ...stone.unanswered.map(tab => unansweredLine(tab, t)),
    ...lostLines(stone, t),
    ...(stone.survivors
      ? [
          t._n(
            'One of its processes is still running.',
            '%1 of its processes are still running.',
            stone.survivors
          )
        ]
      : []),
    ...(stone.memory_released_bytes
      ? [t.__('%1 of GPU memory came free.', amounts.bytes(stone.memory_released_bytes, t))]
      : []),
    t.__('To go on, run the notebook from the top: its next kernel starts empty.')
  ];
}

function lostLines(stone: ITombstone, t: TranslationBundle): string[] {
  return stone.lost.length
    ? [t.__('Lost: %1.', list(stone.lost.map(code => lostWord(code, t))))]
    : [];
}

function savedLine(saved: ITombstone['saved'][number], t: TranslationBundle): string {
  const name = baseName(saved.path);
  if (saved.recovery_path) {
    return t.__('%1: the open copy is in %2.', name, saved.recovery_path);
  }
  switch (saved.outcome) {
    case 'saved':
      return t.__('%1: saved.', name);
    case 'clean':
      return t.__('%1: had been saved already.', name);
    case 'recovered':
      return t.__('%1: its own file could not take it; the server keeps a copy.', name);
    default:
      return t.__('%1: not saved.', name);
  }
}

function unansweredLine(tab: ITombstone['unanswered'][number], t: TranslationBundle): string {
  return tab.last_seen_dirty
    ? t.__('%1: a tab with unsaved edits did not answer; they are still in it.', baseName(tab.path))
    : t.__('%1: a tab did not answer.', baseName(tab.path));
}

function nothing(): void {
  // It was seen at once.
}

/** The server names the file. Unlike a new window this is no pop-up that a browser may block. */
function download(url: string): void {
  const link = document.createElement('a');
  link.href = url;
  link.download = '';
  link.click();
}
