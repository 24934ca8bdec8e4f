import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { keepDirtyAfterEdits } from '../src/edits';
import { GuardModel } from '../src/model';
import { SaveResponder } from '../src/responder';
import { Saver } from '../src/saving';
import type { IDocumentAnswer, ISaveRequest } from '../src/wire';
import { Disk, OpenDocument } from './disk';
import { later, NOW, OpenDocuments, Source } from './samples';

const PATH = 'work/a.ipynb';
const COPY = 'work/gpu_guard_recovery/a-1.ipynb';
const OLD = { cells: [{ source: 'x = 1', outputs: [] }] };
const NEW = { cells: [{ source: 'x = 2', outputs: [] }] };
const NEWER = { cells: [{ source: 'x = 3', outputs: [] }] };

let disk: Disk;
let saver: Saver;
/** What the server was given to keep. */
let handed: string[];
let handOver: (content: string) => Promise<string>;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date'] });
  disk = new Disk();
  disk.put('work', null, true, 'directory');
  disk.put(PATH, OLD);
  saver = new Saver(disk);
  handed = [];
  handOver = async content => `id-${handed.push(content)}`;
});

afterEach(() => {
  vi.useRealTimers();
});

/** Save with a minute to go, however long it takes. */
async function save(document: OpenDocument, copy: string | null = COPY): Promise<IDocumentAnswer> {
  const answer = saver.save(document.context, { path: copy, handOver }, 60_000);
  let done = false;
  void answer.then(() => {
    done = true;
  });
  for (let turn = 0; turn < 500 && !done; turn++) {
    await new Promise(resolve => setImmediate(resolve)); // hashes are made in real time
  }
  await vi.advanceTimersByTimeAsync(60_000);
  return answer;
}

describe('Saver', () => {
  it('saves an unsaved document and names the hash on disk', async () => {
    const document = new OpenDocument(disk, PATH, NEW);
    expect(await save(document)).toMatchObject({ path: PATH, outcome: 'saved', hash: `${PATH}@2` });
    expect(disk.files.get(PATH)?.content).toEqual(NEW);
    expect(disk.writes).toEqual([PATH]);
  });

  it('writes nothing where nothing is unsaved', async () => {
    const document = new OpenDocument(disk, PATH, OLD, false);
    expect(await save(document)).toMatchObject({ outcome: 'clean', hash: `${PATH}@1` });
    expect(disk.writes).toEqual([]);
  });

  it('puts a conflict into a copy, asks nobody, and leaves the file as it is', async () => {
    const document = new OpenDocument(disk, PATH, NEW);
    disk.put(PATH, NEWER); // somebody else's
    expect(await save(document)).toMatchObject({
      outcome: 'conflict',
      recovery_path: COPY,
      recovery_hash: `${COPY}@1`,
      error: 'the file has changed on disk'
    });
    expect(disk.files.get(PATH)?.content).toEqual(NEWER);
    expect(disk.files.get(COPY)?.content).toEqual(NEW);
    expect(document.dialogs).toBe(0);
    expect(document.model.dirty).toBe(true);
  });

  it('sees a conflict by its time where the server gives no hash', async () => {
    disk.withoutHashes = true;
    const document = new OpenDocument(disk, PATH, NEW);
    disk.put(PATH, NEWER);
    const answer = await save(document);
    expect(answer).toMatchObject({ outcome: 'conflict', recovery_path: COPY });
    expect(answer.recovery_hash).toMatch(/^[0-9a-f]{64}$/);
    expect(document.saves).toBe(0);
  });

  it('puts a read-only document into a copy without trying to save', async () => {
    disk.put(PATH, OLD, false);
    const document = new OpenDocument(disk, PATH, NEW);
    expect(await save(document)).toMatchObject({ outcome: 'read_only', recovery_path: COPY });
    expect(document.saves).toBe(0);
  });

  it.each([true, false])('puts a deleted document (unsaved: %s) into a copy', async dirty => {
    const document = new OpenDocument(disk, PATH, NEW, dirty);
    disk.files.delete(PATH);
    expect(await save(document)).toMatchObject({ outcome: 'deleted', recovery_path: COPY });
    expect(disk.files.get(COPY)?.content).toEqual(NEW);
    expect(disk.files.has(PATH)).toBe(false);
  });

  it('saves again what was edited during the save', async () => {
    const document = new OpenDocument(disk, PATH, NEW);
    document.meanwhile = () => {
      document.meanwhile = () => undefined;
      document.edit(NEWER);
    };
    expect(await save(document)).toMatchObject({ outcome: 'saved', hash: `${PATH}@3` });
    expect(disk.files.get(PATH)?.content).toEqual(NEWER);
  });

  it('puts what is edited during every save into a copy and marks it unsaved', async () => {
    const document = new OpenDocument(disk, PATH, NEW);
    let edits = 0;
    document.meanwhile = () => document.edit({ cells: [{ source: `edit ${++edits}` }] });
    expect(await save(document)).toMatchObject({ outcome: 'failed', recovery_path: COPY });
    expect(disk.files.get(COPY)?.content).toEqual({ cells: [{ source: 'edit 2' }] });
    expect(document.saves).toBe(2);
    expect(document.model.dirty).toBe(true);
  });

  it('does not wait for a dialog that nobody answers', async () => {
    const document = new OpenDocument(disk, PATH, NEW);
    // The file changes after our own look at it, so that JupyterLab asks.
    const get = disk.get;
    disk.get = async (path, options) => {
      const file = await get(path, options);
      if (path === PATH && document.dialogs === 0) {
        disk.put(PATH, NEWER);
      }
      return file;
    };
    expect(await save(document)).toMatchObject({
      outcome: 'failed',
      recovery_path: COPY,
      error: 'it was not saved in time'
    });
    expect(document.dialogs).toBe(1);
    expect(disk.files.get(COPY)?.content).toEqual(NEW);
  });

  it('leaves time for the copy: it gives the save up well before the deadline', async () => {
    const document = new OpenDocument(disk, PATH, NEW);
    document.save = () => new Promise(() => undefined);
    let answered = false;
    const places = { path: COPY, handOver };
    void saver.save(document.context, places, 10_000).then(() => (answered = true));
    await vi.advanceTimersByTimeAsync(5_900);
    expect(answered).toBe(false);
    await vi.advanceTimersByTimeAsync(200);
    expect(answered).toBe(true);
  });

  it('makes the folder of the copy, and those above it', async () => {
    disk.files.delete(PATH);
    const document = new OpenDocument(disk, PATH, NEW);
    const answer = await save(document, 'work/copies/deep/a.ipynb');
    expect(answer.outcome).toBe('deleted');
    expect(disk.writes).toEqual(['work/copies', 'work/copies/deep', 'work/copies/deep/a.ipynb']);
    expect(disk.files.get('work/copies/deep')?.type).toBe('directory');
  });

  it.each([null, COPY])('hands the copy to the server where it cannot go to %s', async copy => {
    const document = new OpenDocument(disk, PATH, NEW);
    disk.put(PATH, NEWER);
    disk.save = () => Promise.reject(new Error('disk full'));
    expect(await save(document, copy)).toMatchObject({
      outcome: 'conflict',
      recovery_path: null,
      recovery_hash: null,
      recovery_id: 'id-1',
      error: 'the file has changed on disk'
    });
    expect(handed.map(text => JSON.parse(text) as unknown)).toEqual([NEW]);
  });

  it('hands a text over as it is', async () => {
    const document = new OpenDocument(disk, 'a.py', 'x = 2'); // its file is gone
    expect(await save(document, null)).toMatchObject({ outcome: 'deleted', recovery_id: 'id-1' });
    expect(handed).toEqual(['x = 2']);
  });

  it('hands nothing over that its own file took', async () => {
    expect(await save(new OpenDocument(disk, PATH, NEW), null)).toMatchObject({ outcome: 'saved' });
    expect(handed).toEqual([]);
  });

  it('says failed, and why, where there is no place for a copy', async () => {
    const document = new OpenDocument(disk, PATH, NEW);
    disk.put(PATH, NEWER);
    handOver = () => Promise.reject(new Error('disk full'));
    expect(await save(document, null)).toMatchObject({
      outcome: 'failed',
      recovery_path: null,
      recovery_id: null,
      error: 'the file has changed on disk; no recovery copy: disk full'
    });
  });

  it('believes a live document only when the file has what is open', async () => {
    const document = new OpenDocument(disk, PATH, NEW, false);
    document.model.collaborative = true;
    const room = document.save;
    document.save = async () => undefined; // the room says "saved", but the disk was full
    expect(await save(document)).toMatchObject({ outcome: 'failed', recovery_path: COPY });
    document.save = room;
    expect(await save(document)).toMatchObject({ outcome: 'saved' });
  });

  it('writes a text document as text', async () => {
    disk.put('a.py', 'x = 1', false);
    const document = new OpenDocument(disk, 'a.py', 'x = 2');
    expect(await save(document, 'a-copy.py')).toMatchObject({ outcome: 'read_only' });
    expect(disk.files.get('a-copy.py')).toMatchObject({ content: 'x = 2', type: 'file' });
  });
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

describe('keepDirtyAfterEdits', () => {
  it('keeps the mark of edits made during a save, and only of those', async () => {
    const document = new OpenDocument(disk, PATH, NEW);
    keepDirtyAfterEdits(document.context);
    await document.save();
    expect(document.model.dirty).toBe(false);
    document.edit(NEWER);
    document.meanwhile = () => document.edit(OLD);
    await document.save();
    expect(document.model.dirty).toBe(true);
  });
});
