/** A disk with the contents API on it, and documents open in a page, which save as JupyterLab's contexts do. */

import type { Contents } from '@jupyterlab/services';
import { Signal } from '@lumino/signaling';
import type { Context } from '../src/documents';

interface IFile {
  content: unknown;
  revision: number;
  writable: boolean;
  type: string;
}

/** A notebook, where a copy of it may go, and what it holds: on disk, and edited once and twice. */
export const PATH = 'work/a.ipynb';
export const COPY = 'work/gpu_guard_recovery/a-1.ipynb';
export const OLD = { cells: [{ source: 'x = 1', outputs: [] }] };
export const NEW = { cells: [{ source: 'x = 2', outputs: [] }] };
export const NEWER = { cells: [{ source: 'x = 3', outputs: [] }] };

export class Disk {
  readonly files = new Map<string, IFile>();
  /** Every path written, in order. */
  readonly writes: string[] = [];
  /** Set: no hashes, as with older servers. */
  withoutHashes = false;

  put(path: string, content: unknown, writable = true, type = 'file'): void {
    const revision = (this.files.get(path)?.revision ?? 0) + 1;
    this.files.set(path, { content, revision, writable, type });
  }

  hash(path: string): string {
    return `${path}@${this.files.get(path)?.revision ?? 'none'}`;
  }

  get = async (path: string, options?: Contents.IFetchOptions): Promise<Contents.IModel> => {
    const file = this.files.get(path);
    if (!file) {
      throw Object.assign(new Error('404'), { response: { status: 404 } });
    }
    const asBytes = options?.format === 'base64';
    return {
      path,
      name: path,
      type: file.type,
      writable: file.writable,
      content: asBytes ? btoa(JSON.stringify(file.content)) : file.content,
      hash: this.withoutHashes ? undefined : this.hash(path),
      last_modified: new Date(1_700_000_000_000 + file.revision * 60_000).toISOString()
    } as Contents.IModel;
  };

  save = async (path: string, model?: Partial<Contents.IModel>): Promise<Contents.IModel> => {
    const folder = path.slice(0, Math.max(0, path.lastIndexOf('/')));
    if (folder && !this.files.has(folder)) {
      throw new Error(`no folder ${folder}`);
    }
    this.writes.push(path);
    this.put(path, model?.content ?? null, true, model?.type ?? 'file');
    return this.get(path);
  };
}

/** A document open in the page. `dialogs` counts the questions that nobody answers. */
export class OpenDocument {
  readonly model;
  readonly saveState = new Signal<this, string>(this);
  readonly lastModifiedCheckMargin = 500;
  readonly localPath: string;
  contentsModel: { hash?: string; last_modified: string; writable: boolean };
  dialogs = 0;
  saves = 0;
  /** Called while a save is under way. */
  meanwhile: () => void = () => undefined;

  constructor(
    private readonly disk: Disk,
    readonly path: string,
    public content: unknown,
    dirty = true
  ) {
    this.localPath = path;
    const file = disk.files.get(path);
    this.contentsModel = {
      hash: disk.withoutHashes ? undefined : disk.hash(path),
      last_modified: new Date(1_700_000_000_000 + (file?.revision ?? 0) * 60_000).toISOString(),
      writable: file?.writable ?? true
    };
    this.model = {
      dirty,
      collaborative: false,
      contentChanged: new Signal<object, void>({}),
      toJSON: () => this.content,
      toString: () => String(this.content)
    };
  }

  edit(content: unknown): void {
    this.content = content;
    this.model.dirty = true;
    this.model.contentChanged.emit();
  }

  save = async (): Promise<void> => {
    this.saves += 1;
    this.saveState.emit('started');
    const taken = this.content;
    if (!this.model.collaborative && this.disk.hash(this.path) !== this.contentsModel.hash) {
      this.dialogs += 1;
      await new Promise(() => undefined);
    }
    this.meanwhile();
    await this.disk.save(this.path, { content: taken, type: 'notebook' });
    this.contentsModel = { ...this.contentsModel, hash: this.disk.hash(this.path) };
    this.model.dirty = false;
    this.saveState.emit('completed');
  };

  get context(): Context {
    return this as unknown as Context;
  }
}

/** A disk that holds the notebook and nothing else. */
export function diskWithNotebook(): Disk {
  const disk = new Disk();
  disk.put('work', null, true, 'directory');
  disk.put(PATH, OLD);
  return disk;
}
