/** Takes the requests to save, has each document saved, and answers for all that were asked for. */

import type { Api } from './api';
import type { Context, IDocuments } from './documents';
import type { GuardModel } from './model';
import type { Saver } from './saving';
import type { IDocumentAnswer, ISaveRequest, SaveOutcome } from './wire';

/** Of two editors of one file the worse outcome counts. */
const WORST_FIRST: SaveOutcome[] = ['failed', 'conflict', 'saved', 'clean'];

export class SaveResponder {
  constructor(
    private readonly model: GuardModel,
    private readonly api: Pick<Api, 'saved'>,
    private readonly documents: IDocuments,
    private readonly saver: Pick<Saver, 'save' | 'closed'>,
    private readonly clientId: string
  ) {
    model.saveRequested.connect((_, request) => void this.respond(request));
  }

  private async respond(request: ISaveRequest): Promise<void> {
    const budget = Date.parse(request.deadline) - this.model.now().getTime();
    const open = this.openOn(request.kernel_id);
    const asked = new Map(request.documents.map(d => [d.path, d.recovery_path]));
    // What was opened a moment ago was not asked for: saved as well, but not answered for.
    const unasked = [...open.keys()].filter(path => !asked.has(path));
    unasked.forEach(path => void this.saveAll(open.get(path) ?? [], null, budget));
    if (asked.size === 0) {
      return;
    }
    const documents = await Promise.all(
      [...asked].map(([path, recovery]) => this.answer(path, open.get(path), recovery, budget))
    );
    try {
      const { nonce, kernel_id } = request;
      await this.api.saved(kernel_id, { nonce, client_id: this.clientId, documents });
    } catch {
      // Too late, or the server is away: it judges by the files, and asks again.
    }
  }

  private async answer(
    path: string,
    contexts: Context[] | undefined,
    recovery: string | null,
    budget: number
  ): Promise<IDocumentAnswer> {
    const answers = contexts ? await this.saveAll(contexts, recovery, budget) : [];
    return (
      WORST_FIRST.flatMap(outcome => answers.filter(a => a.outcome === outcome))[0] ??
      (await this.saver.closed(path))
    );
  }

  /** One after another: the second editor of a file has to see what the first has written. */
  private async saveAll(
    contexts: Context[],
    recovery: string | null,
    budget: number
  ): Promise<IDocumentAnswer[]> {
    const answers: IDocumentAnswer[] = [];
    let free = recovery;
    for (const context of contexts) {
      const answer = await this.saver.save(context, free, budget / contexts.length);
      if (answer.recovery_path !== null) {
        free = null; // a second copy would write over the first
      }
      answers.push(answer);
    }
    return answers;
  }

  private openOn(kernelId: string): Map<string, Context[]> {
    const found = new Map<string, Context[]>();
    for (const { context, kernelId: on } of this.documents.all()) {
      if (on === kernelId) {
        found.set(context.localPath, [...(found.get(context.localPath) ?? []), context]);
      }
    }
    return found;
  }
}
