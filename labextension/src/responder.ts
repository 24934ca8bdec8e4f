/** Takes the requests to save, has each document saved, and answers for all that were asked for. */

import type { Api } from './api';
import type { Context, IDocuments } from './documents';
import type { GuardModel } from './model';
import type { IPlaces } from './recovery';
import type { Saver } from './saving';
import type { IDocumentAnswer, ISaveRequest } from './wire';

export class SaveResponder {
  constructor(
    private readonly model: GuardModel,
    private readonly api: Pick<Api, 'saved' | 'handOver'>,
    private readonly documents: IDocuments,
    private readonly saver: Pick<Saver, 'save' | 'closed'>,
    private readonly clientId: string
  ) {
    model.saveRequested.connect((_, request) => void this.respond(request));
  }

  private async respond(request: ISaveRequest): Promise<void> {
    const budget = Date.parse(request.deadline) - this.model.now().getTime();
    const open = this.openOn(request.kernel_id);
    const asked = new Set(request.documents.map(d => d.path));
    // What was opened a moment ago was not asked for: saved as well, but not answered for.
    const unasked = [...open.keys()].filter(path => !asked.has(path));
    unasked.forEach(path => void this.saveAll(open.get(path) ?? [], null, budget));
    if (asked.size === 0) {
      return;
    }
    await Promise.all(
      request.documents.map(async ({ path, recovery_path, wait_seconds = 0 }) => {
        // A document that was given another kernel since is still the one that was asked for.
        const contexts = open.get(path) ?? this.documents.at(path);
        const places = this.places(request, path, recovery_path);
        const wait = contexts.some(({ model }) => model.dirty) ? wait_seconds * 1000 : 0;
        await new Promise(resolve => setTimeout(resolve, wait));
        this.tell(request, await this.answer(path, contexts, places, budget - wait));
      })
    );
  }

  /** Each document by itself, so that a slow one doesn't make the others silent. */
  private tell({ nonce, kernel_id }: ISaveRequest, documents: IDocumentAnswer[]): void {
    this.api.saved(kernel_id, { nonce, client_id: this.clientId, documents }).catch(() => {
      // Too late, or the server is away: it judges by the files, and asks again.
    });
  }

  private places(request: ISaveRequest, path: string, copy: string | null): IPlaces {
    const { nonce, kernel_id } = request;
    const named = { nonce, client_id: this.clientId, path };
    return { path: copy, handOver: content => this.api.handOver(kernel_id, named, content) };
  }

  /** One answer for each editor of the file, or one for the file itself where it is no longer open. */
  private async answer(
    path: string,
    contexts: Context[],
    places: IPlaces,
    budget: number
  ): Promise<IDocumentAnswer[]> {
    return contexts.length
      ? this.saveAll(contexts, places, budget)
      : [await this.saver.closed(path)];
  }

  /** One after another: the second editor of a file has to see what the first has written. */
  private async saveAll(
    contexts: Context[],
    places: IPlaces | null,
    budget: number
  ): Promise<IDocumentAnswer[]> {
    const answers: IDocumentAnswer[] = [];
    let free = places;
    for (const context of contexts) {
      const answer = await this.saver.save(context, free, budget / contexts.length);
      if (free && answer.recovery_path !== null) {
        free = { ...free, path: null }; // a second copy would write over the first
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
