/**
 * Answers a request to save: every document of the kernel that is open in this window, hidden or not.
 *
 * Nobody may be there to answer a dialog, so a document goes through `context.save()` only when that will not ask. A
 * file that changed on disk, is gone, may not be written, or did not save in time is left alone, and what is open here
 * goes to the recovery path that the server named, or to the server itself. The server checks each answer against the
 * disk.
 */

import type { Contents } from '@jupyterlab/services';
import type { Context } from './documents';
import { type IDisk, onDisk } from './hashes';
import { fileText, type IPlaces, sameContent, writeRecoveryCopy } from './recovery';
import type { IDocumentAnswer, SaveOutcome } from './wire';

/** The share of the time until the deadline that saving may take; the rest is for recovery copies. */
const SHARE_OF_TIME = 0.6;
const LEAST_MS = 2_000;
const LONGEST_SAVE_MS = 30_000;

type ContentsAccess = Pick<Contents.IManager, 'get' | 'save'>;

/**
 * Why a document cannot go into its own file; English, for the server's log. With `conflict`, `read_only` and `deleted`
 * a copy is as good as a save; `failed` is for what may go better the next time.
 */
class Obstacle extends Error {
  constructor(
    message: string,
    readonly outcome: SaveOutcome = 'failed'
  ) {
    super(message);
  }
}

export class Saver {
  constructor(private readonly contents: ContentsAccess) {}

  /** Save one document within `budget` milliseconds; without `places` only into its own file. Never rejects. */
  async save(context: Context, places: IPlaces | null, budget: number): Promise<IDocumentAnswer> {
    const time = Math.min(LONGEST_SAVE_MS, Math.max(LEAST_MS, budget * SHARE_OF_TIME));
    try {
      return await within(time, this.inPlace(context));
    } catch (error) {
      const outcome = error instanceof Obstacle ? error.outcome : 'failed';
      const failed = { ...blank(context.localPath), error: textOf(error) };
      return this.aside(context, places, { ...failed, outcome }, Math.max(LEAST_MS, budget - time));
    }
  }

  /** A document that was asked for and is no longer open here: its file is all there is. */
  async closed(path: string): Promise<IDocumentAnswer> {
    try {
      const disk = await within(LEAST_MS, onDisk(this.contents, path));
      return { ...blank(path), outcome: 'clean', hash: disk?.hash ?? null };
    } catch (error) {
      return { ...blank(path), error: textOf(error) };
    }
  }

  /** Raises `Obstacle`, or what the server answered, where the document has to go to a recovery copy. */
  private async inPlace(context: Context): Promise<IDocumentAnswer> {
    if (context.model.collaborative) {
      return this.throughRoom(context);
    }
    const disk = await onDisk(this.contents, context.path);
    if (disk === null) {
      throw new Obstacle('the file is gone', 'deleted'); // what is open here may be the only copy, edited or not
    }
    const path = context.localPath;
    if (!context.model.dirty) {
      return { ...blank(path), outcome: 'clean', hash: disk.hash };
    }
    if (!disk.writable || context.contentsModel?.writable === false) {
      throw new Obstacle('the file may not be written', 'read_only');
    }
    if (changed(context, disk)) {
      throw new Obstacle('the file has changed on disk', 'conflict');
    }
    await saveAll(context);
    const after = await onDisk(this.contents, context.path);
    const ours = context.contentsModel?.hash;
    if (after === null || (ours && after.hash !== ours) || !(await this.holdsOurs(context))) {
      throw new Obstacle('the file was changed right after it was saved', 'conflict');
    }
    return { ...blank(path), outcome: 'saved', hash: after.hash };
  }

  /** When two windows save one file at once, both may be told the hash of a mixture of the two. */
  private async holdsOurs(context: Context): Promise<boolean> {
    try {
      const file = await this.contents.get(context.path, { content: true });
      // Not the outputs: a server may be set up to leave them out.
      return file.format === 'base64' || sameContent(file.content, context.model, false);
    } catch {
      return false; // so mixed that it is no notebook any more
    }
  }

  /**
   * A live document is saved by its room, which says "saved" even when the disk was full. Only the file itself tells.
   */
  private async throughRoom(context: Context): Promise<IDocumentAnswer> {
    await context.save();
    const file = await this.contents.get(context.path, { content: true, hash: true });
    if (!sameContent(file.content, context.model)) {
      throw new Obstacle('the file is not what is open');
    }
    return { ...blank(context.localPath), outcome: 'saved', hash: file.hash ?? null };
  }

  /** The answer with a copy named in it; `failed` where no copy could be made in time. */
  private async aside(
    context: Context,
    places: IPlaces | null,
    answer: IDocumentAnswer,
    budget: number
  ): Promise<IDocumentAnswer> {
    if (places === null) {
      return { ...answer, outcome: 'failed' };
    }
    try {
      return { ...answer, ...(await within(budget, this.copy(context, places))) };
    } catch (second) {
      const error = `${answer.error}; no recovery copy: ${textOf(second)}`;
      return { ...answer, outcome: 'failed', error };
    }
  }

  /** A copy in the first place that takes it. Raises what the last one said. */
  private async copy(context: Context, places: IPlaces): Promise<Partial<IDocumentAnswer>> {
    const { model, localPath } = context;
    if (places.path !== null) {
      try {
        await writeRecoveryCopy(this.contents, model, places.path);
        const written = await onDisk(this.contents, places.path);
        return { recovery_path: places.path, recovery_hash: written?.hash ?? null };
      } catch {
        // That disk is full, or may not be written: the server's other places may be on another.
      }
    }
    return { recovery_id: await places.handOver(fileText(model, localPath)) };
  }
}

/**
 * Save until what is on disk is what is open, twice at most: JupyterLab marks edits made during a save as saved
 * (jupyterlab#17365). Where it changed during the second too, the document is marked unsaved again.
 */
async function saveAll(context: Context): Promise<void> {
  for (let round = 0; round < 2; round++) {
    let edited = false;
    const onEdit = (): void => {
      edited = true;
    };
    context.model.contentChanged.connect(onEdit);
    try {
      await context.save();
    } finally {
      context.model.contentChanged.disconnect(onEdit);
    }
    if (!edited) {
      return;
    }
  }
  context.model.dirty = true;
  throw new Obstacle('it was edited while it was being saved');
}

/** Whether the file is another than the one loaded here. By time where the server gives no hash. */
function changed(context: Context, disk: IDisk): boolean {
  const known = context.contentsModel;
  if (known?.hash && disk.hash) {
    return known.hash !== disk.hash;
  }
  const loaded = Date.parse(known?.last_modified ?? '');
  return !(disk.modified - loaded <= context.lastModifiedCheckMargin);
}

function blank(path: string): IDocumentAnswer {
  return {
    path,
    outcome: 'failed',
    hash: null,
    recovery_path: null,
    recovery_hash: null,
    recovery_id: null,
    error: null
  };
}

function textOf(error: unknown): string {
  return (error instanceof Error && error.message ? error.message : String(error)).slice(0, 400);
}

/** Rejects after `milliseconds`. What was begun goes on, as a dialog does until somebody answers it. */
async function within<T>(milliseconds: number, promise: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Obstacle('it was not saved in time')), milliseconds);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
