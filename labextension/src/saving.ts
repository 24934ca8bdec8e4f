/**
 * Answers a request to save: every document of the kernel that is open in this window, hidden or not.
 *
 * Nobody may be there to answer a dialog, so a document goes through `context.save()` only when that will not ask. A
 * file that changed on disk, is gone, may not be written, or did not save in time is left alone, and what is open here
 * goes to the recovery path that the server named. The server checks each answer against the disk.
 */

import type { Contents } from '@jupyterlab/services';
import type { Api } from './api';
import type { Context, IDocuments } from './documents';
import type { GuardModel } from './model';
import { sameContent, writeRecoveryCopy } from './recovery';
import type { IDocumentAnswer, ISaveRequest, SaveOutcome } from './wire';

/** The share of the time until the deadline that saving may take; the rest is for recovery copies. */
const SHARE_OF_TIME = 0.6;
const LEAST_MS = 2_000;
const LONGEST_SAVE_MS = 30_000;

type ContentsAccess = Pick<Contents.IManager, 'get' | 'save'>;

interface IDisk {
  hash: string | null;
  writable: boolean;
  modified: number;
}

export class Saver {
  constructor(
    private readonly contents: ContentsAccess,
    private readonly clientId: string
  ) {}

  /** Save one document within `budget` milliseconds. Never rejects. */
  async save(
    context: Context,
    recoveryPath: string | null,
    budget: number
  ): Promise<IDocumentAnswer> {
    const time = Math.min(LONGEST_SAVE_MS, Math.max(LEAST_MS, budget * SHARE_OF_TIME));
    try {
      const hash = await within(time, this.inPlace(context));
      if (hash !== undefined) {
        return answer(context, hash.outcome, hash.hash);
      }
    } catch {
      // Timed out, refused, or failed: what is open here must not depend on why.
    }
    return this.aside(context, recoveryPath);
  }

  /** The outcome, or undefined where the document has to go to a recovery copy. */
  private async inPlace(
    context: Context
  ): Promise<{ outcome: SaveOutcome; hash: string | null } | undefined> {
    const shared = context.model.collaborative === true;
    if (shared) {
      return this.throughRoom(context);
    }
    const disk = await this.disk(context);
    if (disk === null) {
      return undefined; // deleted: what is open here may be the only copy, edited or not
    }
    if (!context.model.dirty) {
      return { outcome: 'clean', hash: disk.hash };
    }
    if (!disk.writable || context.contentsModel?.writable === false || changed(context, disk)) {
      return undefined;
    }
    if (!(await saveAll(context))) {
      return undefined;
    }
    const after = await this.disk(context);
    const ours = context.contentsModel?.hash ?? null;
    return after !== null && (ours === null || after.hash === ours)
      ? { outcome: 'saved', hash: after.hash }
      : undefined; // somebody else wrote right behind us
  }

  /**
   * A live document is saved by its room, which says "saved" even when the disk was full. Only the file itself tells.
   */
  private async throughRoom(
    context: Context
  ): Promise<{ outcome: SaveOutcome; hash: string | null } | undefined> {
    await context.save();
    const file = await this.contents.get(context.path, { content: true, hash: true });
    return sameContent(file.content, context.model)
      ? { outcome: 'saved', hash: file.hash ?? null }
      : undefined;
  }

  private async disk(context: Context): Promise<IDisk | null> {
    try {
      const file = await this.contents.get(context.path, { content: false, hash: true });
      return {
        hash: file.hash ?? null,
        writable: file.writable,
        modified: Date.parse(file.last_modified)
      };
    } catch (error) {
      if ((error as { response?: Response }).response?.status === 404) {
        return null;
      }
      throw error;
    }
  }

  private async aside(context: Context, recoveryPath: string | null): Promise<IDocumentAnswer> {
    if (recoveryPath === null) {
      return answer(context, 'failed', null);
    }
    try {
      const path = await writeRecoveryCopy(
        this.contents,
        context.model,
        recoveryPath,
        this.clientId
      );
      return { ...answer(context, 'conflict', null), recovery_path: path };
    } catch {
      return answer(context, 'failed', null);
    }
  }
}

/** Answers the requests of the model with a `Saver`. */
export class SaveResponder {
  constructor(
    private readonly model: GuardModel,
    private readonly api: Pick<Api, 'saved'>,
    private readonly documents: IDocuments,
    private readonly saver: Saver,
    private readonly clientId: string
  ) {
    model.saveRequested.connect((_, request) => void this.respond(request));
  }

  private async respond(request: ISaveRequest): Promise<void> {
    const budget = Date.parse(request.deadline) - this.model.now().getTime();
    const recovery = new Map(request.documents.map(d => [d.path, d.recovery_path]));
    const open = this.documents.all().filter(d => d.kernelId === request.kernel_id);
    const documents = await Promise.all(
      open.map(({ context }) =>
        this.saver.save(context, recovery.get(context.localPath) ?? null, budget)
      )
    );
    try {
      const { nonce, kernel_id } = request;
      await this.api.saved(kernel_id, { nonce, client_id: this.clientId, documents });
    } catch {
      // Too late, or the server is away: it judges by the files, and asks again.
    }
  }
}

/**
 * Save until what is on disk is what is open, twice at most: JupyterLab marks edits made during a save as saved
 * (jupyterlab#17365). False where it changed during the second too; the document is then marked unsaved again.
 */
async function saveAll(context: Context): Promise<boolean> {
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
      return true;
    }
  }
  context.model.dirty = true;
  return false;
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

function answer(context: Context, outcome: SaveOutcome, hash: string | null): IDocumentAnswer {
  return { path: context.localPath, outcome, hash, recovery_path: null };
}

/** Rejects after `milliseconds`. What was begun goes on, as a dialog does until somebody answers it. */
async function within<T>(milliseconds: number, promise: Promise<T>): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new Error('too late')), milliseconds);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}
