import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { GuardModel } from '../src/model';
import { SaveResponder } from '../src/responder';
import { Saver } from '../src/saving';
import type { IDocumentAnswer, ISaveRequest } from '../src/wire';
import { COPY, type Disk, diskWithNotebook, NEW, NEWER, OLD, OpenDocument, PATH } from './disk';
import { later, NOW, OpenDocuments, Source } from './samples';

let disk: Disk;
let saver: Saver;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date'] });
  disk = diskWithNotebook();
  saver = new Saver(disk);
});

afterEach(() => {
  vi.useRealTimers();
});

describe('SaveResponder', () => {
  const sent: { nonce: string; client_id: string; documents: IDocumentAnswer[] }[] = [];
  const given: [string, { nonce: string; client_id: string; path: string }, string][] = [];
  let documents: OpenDocuments;
  let source: Source;

  beforeEach(() => {
    vi.setSystemTime(NOW);
    sent.length = 0;
    given.length = 0;
    documents = new OpenDocuments();
    source = new Source();
    const api = {
      saved: async (_: string, answer: (typeof sent)[number]) => void sent.push(answer),
      handOver: async (...copy: (typeof given)[number]) => `id-${given.push(copy)}`
    };
    new SaveResponder(new GuardModel(source), api, documents, saver, 'me');
  });

  function open(document: OpenDocument, kernelId = 'k1'): void {
    documents.open.push({ context: document.context, kernelId });
  }

  async function ask(changes: Partial<ISaveRequest> = {}): Promise<void> {
    source.message.emit({
      type: 'save_request',
      nonce: 'n1',
      kernel_id: 'k1',
      deadline: later(60),
      documents: [{ path: PATH, recovery_path: COPY }],
      ...changes
    });
    await vi.advanceTimersByTimeAsync(60_000);
  }

  it('answers for every document asked for, with its own name and the nonce', async () => {
    disk.put('b.ipynb', OLD);
    open(new OpenDocument(disk, PATH, NEW));
    open(new OpenDocument(disk, 'b.ipynb', OLD, false));
    open(new OpenDocument(disk, PATH, NEWER), 'another kernel');
    await ask({
      documents: [
        { path: PATH, recovery_path: COPY },
        { path: 'b.ipynb', recovery_path: null }
      ]
    });
    expect(sent.every(({ nonce, client_id }) => nonce === 'n1' && client_id === 'me')).toBe(true);
    const answers = sent.flatMap(({ documents }) => documents.map(d => [d.path, d.outcome]));
    expect(answers.sort()).toEqual([
      ['b.ipynb', 'clean'],
      [PATH, 'saved']
    ]);
    expect(disk.files.get(PATH)?.content).toEqual(NEW);
  });

  it('waits for its turn where another window writes the file first, unless it has nothing to write', async () => {
    disk.put('b.ipynb', OLD);
    open(new OpenDocument(disk, PATH, NEW));
    open(new OpenDocument(disk, 'b.ipynb', OLD, false));
    const asked = [PATH, 'b.ipynb'].map(path => ({ path, recovery_path: COPY, wait_seconds: 10 }));
    void ask({ documents: asked });
    await vi.advanceTimersByTimeAsync(9_900);
    expect(disk.writes).toEqual([]);
    expect(sent.flatMap(answer => answer.documents.map(d => d.outcome))).toEqual(['clean']);
    await vi.advanceTimersByTimeAsync(200);
    expect(disk.writes).toEqual([PATH]);
    expect(sent.flatMap(answer => answer.documents.map(d => d.outcome))).toEqual([
      'clean',
      'saved'
    ]);
  });

  it('answers while the page is hidden', async () => {
    Object.defineProperty(document, 'hidden', { configurable: true, value: true });
    open(new OpenDocument(disk, PATH, NEW));
    await ask();
    expect(sent[0]?.documents[0]?.outcome).toBe('saved');
    Object.defineProperty(document, 'hidden', { configurable: true, value: false });
  });

  it('tells of one document while another takes its time', async () => {
    disk.put('b.ipynb', OLD);
    const slow = new OpenDocument(disk, PATH, NEW);
    slow.save = () => new Promise(() => undefined);
    open(slow);
    open(new OpenDocument(disk, 'b.ipynb', NEW));
    await ask({ documents: [PATH, 'b.ipynb'].map(path => ({ path, recovery_path: null })) });
    expect(sent.map(answer => answer.documents.map(d => d.path))).toEqual([['b.ipynb'], [PATH]]);
  });

  it('does not take a document for closed that was given another kernel', async () => {
    documents.elsewhere = [new OpenDocument(disk, PATH, NEW).context];
    await ask();
    expect(sent[0]?.documents).toMatchObject([{ path: PATH, outcome: 'saved' }]);
    expect(disk.files.get(PATH)?.content).toEqual(NEW);
  });

  it('answers for a document that was closed meanwhile with what is on disk', async () => {
    await ask();
    expect(sent[0]?.documents).toMatchObject([{ path: PATH, outcome: 'clean', hash: `${PATH}@1` }]);
  });

  it('saves what was opened a moment ago but does not answer for it', async () => {
    disk.put('new.ipynb', OLD);
    open(new OpenDocument(disk, PATH, NEW));
    open(new OpenDocument(disk, 'new.ipynb', NEW));
    await ask();
    expect(sent[0]?.documents.map(d => d.path)).toEqual([PATH]);
    expect(disk.files.get('new.ipynb')?.content).toEqual(NEW);
  });

  it('saves two editors of one file one after the other, the second into the copy', async () => {
    open(new OpenDocument(disk, PATH, NEW));
    open(new OpenDocument(disk, PATH, NEWER));
    await ask();
    expect(disk.files.get(PATH)?.content).toEqual(NEW);
    expect(disk.files.get(COPY)?.content).toEqual(NEWER);
    expect(sent[0]?.documents).toMatchObject([
      { path: PATH, outcome: 'saved', hash: `${PATH}@2` },
      { path: PATH, outcome: 'conflict', recovery_path: COPY }
    ]);
  });

  it('hands the copy over in the name of the request where it may write none', async () => {
    open(new OpenDocument(disk, PATH, NEW));
    disk.put(PATH, OLD);
    await ask({ documents: [{ path: PATH, recovery_path: null }] });
    const [[kernelId, named, content] = []] = given;
    expect([kernelId, named]).toEqual(['k1', { nonce: 'n1', client_id: 'me', path: PATH }]);
    expect(JSON.parse(content ?? '')).toEqual(NEW);
    expect(sent[0]?.documents).toMatchObject([{ outcome: 'conflict', recovery_id: 'id-1' }]);
  });

  it('never writes two copies to one place', async () => {
    open(new OpenDocument(disk, PATH, NEW));
    open(new OpenDocument(disk, PATH, NEWER));
    disk.put(PATH, OLD);
    await ask();
    expect(disk.files.get(COPY)?.content).toEqual(NEW);
    expect(given.map(([, , content]) => JSON.parse(content) as unknown)).toEqual([NEWER]);
    expect(sent[0]?.documents).toMatchObject([
      { outcome: 'conflict', recovery_path: COPY, recovery_id: null },
      { outcome: 'conflict', recovery_path: null, recovery_id: 'id-1' }
    ]);
  });

  it('says nothing to a request that is not for this page', async () => {
    open(new OpenDocument(disk, PATH, OLD, false), 'another kernel');
    await ask({ documents: [] });
    expect(sent).toEqual([]);
  });
});
