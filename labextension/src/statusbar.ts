/**
 * GPU use, memory and countdown of the notebook in front, as one button that opens the details.
 *
 * A page that is hidden draws nothing and runs no timer. The item is no live region: a screen reader is not told
 * every second; warnings are notifications.
 */

import type { TranslationBundle } from '@jupyterlab/translation';
import type { Message } from '@lumino/messaging';
import { Widget } from '@lumino/widgets';
import * as amounts from './amounts';
import { countdown, type ICountdown } from './countdown';
import { detailLines, showDetails } from './details';
import type { IDocuments } from './documents';
import type { Actions } from './keep';
import type { GuardModel } from './model';
import type { INotices } from './tokens';
import type { IKernel, IStatus } from './wire';
import { brief } from './words';

export class StatusItem extends Widget {
  constructor(
    private readonly model: GuardModel,
    private readonly documents: IDocuments,
    private readonly actions: Actions,
    private readonly t: TranslationBundle,
    private readonly notices: INotices | null
  ) {
    super();
    this.addClass('jp-StatusBar-TextItem');
    this.addClass('jp-GpuGuard');
    this.button.className = 'jp-GpuGuard-item';
    this.button.type = 'button';
    this.button.setAttribute('aria-live', 'off');
    this.use.className = 'jp-GpuGuard-use';
    this.words.className = 'jp-GpuGuard-words';
    this.button.append(this.use, this.words);
    this.node.append(this.button);
    this.button.addEventListener('click', () => void this.onClick());
    model.changed.connect(this.redraw, this);
    documents.frontChanged.connect(this.redraw, this);
    notices?.changed.connect(this.redraw, this);
    document.addEventListener('visibilitychange', this.onVisibility);
  }

  override dispose(): void {
    clearTimeout(this.timer);
    document.removeEventListener('visibilitychange', this.onVisibility);
    this.model.changed.disconnect(this.redraw, this);
    this.documents.frontChanged.disconnect(this.redraw, this);
    this.notices?.changed.disconnect(this.redraw, this);
    super.dispose();
  }

  /** The user wants to see it or not. */
  set wanted(wanted: boolean) {
    this._wanted = wanted;
    this.redraw();
  }

  protected override onUpdateRequest(message: Message): void {
    super.onUpdateRequest(message);
    clearTimeout(this.timer);
    if (document.hidden || this.isDisposed) {
      return;
    }
    const kernel = this.kernel();
    const status = this.model.status;
    // Where there is no GPU to read there is nothing to say, unless something is going to end the kernel.
    const matters = status?.telemetry.state !== 'none' || Boolean(kernel?.deadline);
    const said = kernel && countdown(kernel, this.model.now(), this.model.connection === 'stale');
    this.use.textContent = status ? useText(kernel, status, this.t) : '';
    this.words.textContent = said ? brief(said, this.t, this.model.now()) : this.wordsWithout();
    this.button.dataset.level = said?.level ?? 'ok';
    this.button.title = detailLines(this.model, kernel, this.t).join('\n');
    const shown = this.use.textContent + this.words.textContent;
    this.setHidden(!this._wanted || !matters || shown === '');
    this.tickAfter(said);
  }

  /** Draw again when the words will have changed, and not before. */
  private tickAfter(said: ICountdown | null): void {
    const remaining = said?.params.remaining_seconds;
    if (remaining !== undefined && remaining > 0 && !this.isHidden) {
      const seconds = Math.min(600, amounts.untilNextText(remaining));
      this.timer = setTimeout(() => this.update(), seconds * 1000);
    }
  }

  private kernel(): IKernel | null {
    return this.model.kernel(this.documents.front()?.kernelId);
  }

  /** No live kernel in front: perhaps it was shut down, and perhaps the server has gone quiet. */
  private wordsWithout(): string {
    const path = this.documents.front()?.path;
    const at = path === undefined ? null : this.notices?.endedAt(path);
    if (at) {
      return this.t.__('shut down at %1', amounts.clock(at, this.model.now()));
    }
    return this.model.connection === 'stale' && this.model.status
      ? this.t.__('no news from the server')
      : '';
  }

  private redraw(): void {
    this.update();
  }

  private readonly onVisibility = (): void => {
    clearTimeout(this.timer);
    this.update();
  };

  private async onClick(): Promise<void> {
    await showDetails(this.model, this.kernel(), this.actions, this.t, this.button);
  }

  private readonly button = document.createElement('button');
  private readonly use = document.createElement('span');
  private readonly words = document.createElement('span');
  private timer: ReturnType<typeof setTimeout> | undefined;
  private _wanted = true;
}

/** "GPU 35 % · 4.2 GiB": of the kernel in front, or of all GPUs where there is none. */
export function useText(kernel: IKernel | null, status: IStatus, t: TranslationBundle): string {
  const parts = kernel ? kernelUse(kernel, t) : machineUse(status, t);
  if (parts.length === 0) {
    return '';
  }
  const name = status.simulated ? t.__('GPU (simulated)') : t.__('GPU');
  return `${name} ${parts.join(' · ')}`;
}

function kernelUse(kernel: IKernel, t: TranslationBundle): string[] {
  if (kernel.gpus.length === 0) {
    return [];
  }
  const busiest = most(kernel.gpus.map(gpu => gpu.sm_ratio));
  return [
    amounts.percent(busiest, t),
    amounts.bytes(total(kernel.gpus.map(gpu => gpu.memory_bytes)), t)
  ];
}

function machineUse(status: IStatus, t: TranslationBundle): string[] {
  if (status.gpus.length === 0) {
    return [];
  }
  const busiest = most(status.gpus.map(gpu => gpu.utilization_ratio));
  const used = total(status.gpus.map(gpu => gpu.memory_used_bytes));
  const all = total(status.gpus.map(gpu => gpu.memory_total_bytes));
  return [
    amounts.percent(busiest, t),
    t.__('%1 of %2', amounts.bytes(used, t), amounts.bytes(all, t))
  ];
}

/** One value that cannot be read makes the answer unreadable, except where another one already shows use. */
function most(values: (number | null)[]): number | null {
  const known = values.filter(value => value !== null);
  const highest = known.length ? Math.max(...known) : null;
  return known.length < values.length && !highest ? null : highest;
}

function total(values: (number | null)[]): number | null {
  return values.some(value => value === null)
    ? null
    : values.reduce<number>((sum, value) => sum + (value ?? 0), 0);
}
