/**
 * The documents open in this window and the kernels they are on.
 *
 * Found by context, not by path: one path may be open in two editors, each with edits of its own. A text file belongs
 * to the kernel of the console that was opened for it. What stands in a console has no document and is not covered.
 */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import type { IConsoleTracker } from '@jupyterlab/console';
import type { IDocumentManager } from '@jupyterlab/docmanager';
import type { DocumentRegistry } from '@jupyterlab/docregistry';
import type { INotebookTracker } from '@jupyterlab/notebook';
import { type ISignal, Signal } from '@lumino/signaling';
import type { Widget } from '@lumino/widgets';

export type Context = DocumentRegistry.Context;

export interface IOpen {
  context: Context;
  kernelId: string;
}

/** What the rest needs of the open documents. */
export interface IDocuments {
  /** Documents, their kernels, or their being dirty have changed. */
  readonly changed: ISignal<unknown, void>;
  /** Another document is in front. */
  readonly frontChanged: ISignal<unknown, void>;
  /** A document was opened, or found open. Once for each. */
  readonly opened: ISignal<unknown, Context>;
  /** A cell of a notebook began to run; the notebook's path. */
  readonly ran: ISignal<unknown, string>;
  /** Every document on a kernel. */
  all(): IOpen[];
  /** Every editor of a file that is open here, whatever its kernel. */
  at(path: string): Context[];
  /** The document in front, with or without a kernel. */
  front(): { path: string; kernelId: string | null } | null;
  /** Paths of every open document, with or without a kernel. */
  paths(): string[];
  /** Give the focus to what is in front. */
  focusFront(): void;
}

const AREAS = ['main', 'down', 'left', 'right'];

export class Documents implements IDocuments {
  constructor(
    private readonly shell: JupyterFrontEnd.IShell,
    private readonly manager: IDocumentManager,
    notebooks: INotebookTracker | null,
    private readonly consoles: IConsoleTracker | null
  ) {
    notebooks?.widgetAdded.connect(this.rescan, this);
    consoles?.widgetAdded.connect(this.rescan, this);
    shell.currentChanged?.connect(this.onCurrent, this);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get frontChanged(): ISignal<this, void> {
    return this._frontChanged;
  }

  get opened(): ISignal<this, Context> {
    return this._opened;
  }

  get ran(): ISignal<this, string> {
    return this._ran;
  }

  all(): IOpen[] {
    return this.contexts().flatMap(context => {
      const kernelId = this.kernelOf(context);
      return kernelId ? [{ context, kernelId }] : [];
    });
  }

  at(path: string): Context[] {
    return this.contexts().filter(context => context.localPath === path);
  }

  front(): { path: string; kernelId: string | null } | null {
    const widget = this.shell.currentWidget;
    const context = widget && this.manager.contextForWidget(widget);
    return context ? { path: context.localPath, kernelId: this.kernelOf(context) } : null;
  }

  paths(): string[] {
    return this.contexts().map(context => context.localPath);
  }

  focusFront(): void {
    this.shell.currentWidget?.activate();
  }

  private contexts(): Context[] {
    const found = new Set<Context>();
    for (const widget of this.widgets()) {
      const context = this.manager.contextForWidget(widget);
      if (context && !context.isDisposed) {
        found.add(context);
      }
    }
    return [...found];
  }

  private *widgets(): IterableIterator<Widget> {
    for (const area of AREAS) {
      try {
        yield* this.shell.widgets(area);
      } catch {
        // This shell has no such area; Notebook 7 has no "down" on some pages.
      }
    }
  }

  private kernelOf(context: Context): string | null {
    const own = context.sessionContext.session?.kernel?.id;
    if (own) {
      return own;
    }
    const console = this.consoles?.find(
      panel => panel.console.sessionContext.session?.path === context.localPath
    );
    return console?.console.sessionContext.session?.kernel?.id ?? null;
  }

  private onCurrent(): void {
    this.rescan();
    this._frontChanged.emit();
  }

  /** Listen to contexts not known yet. A widget is in its area a moment after it was announced. */
  private rescan(): void {
    queueMicrotask(() => {
      this.contexts().forEach(context => this.watch(context));
      this._changed.emit();
    });
  }

  private watch(context: Context): void {
    if (this.watched.has(context)) {
      return;
    }
    this.watched.add(context);
    context.model.stateChanged.connect((_, change) => {
      if (change.name === 'dirty') {
        this._changed.emit();
      }
    });
    context.pathChanged.connect(this.onPart, this);
    context.disposed.connect(this.onPart, this);
    context.sessionContext.kernelChanged.connect(this.onKernel, this);
    context.sessionContext.iopubMessage.connect((_, message) => {
      if (message.header.msg_type === 'execute_input') {
        this._ran.emit(context.localPath);
      }
    });
    this._opened.emit(context);
  }

  private onPart(): void {
    this._changed.emit();
  }

  private onKernel(): void {
    this._changed.emit();
    this._frontChanged.emit();
  }

  private readonly watched = new WeakSet<Context>();
  private readonly _changed = new Signal<this, void>(this);
  private readonly _frontChanged = new Signal<this, void>(this);
  private readonly _ran = new Signal<this, string>(this);
  private readonly _opened = new Signal<this, Context>(this);
}
