import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { keepDirtyAfterEdits } from '../src/edits';
import { Saver } from '../src/saving';
import type { IDocumentAnswer } from '../src/wire';
import { COPY, type Disk, diskWithNotebook, NEW, NEWER, OLD, OpenDocument, PATH } from './disk';

let disk: Disk;
let saver: Saver;
/** What the server was given to keep. */
let handed: string[];
let handOver: (content: string) => Promise<string>;

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date'] });
  disk = diskWithNotebook();
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
    vi.useRealTimers(); // browsers compute hashes in a thread of their own
    const answer = await saver.save(document.context, { path: COPY, handOver }, 60_000);
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

  it.each([
    ['another window has written over it', NEWER],
    ['two windows have written into each other', '{"cells": []}}']
  ])('does not believe that it is saved where %s', async (_, mixture) => {
    const document = new OpenDocument(disk, PATH, NEW);
    const { save: write } = disk;
    disk.save = async (path, model) => {
      disk.save = write;
      return write(path, { ...model, content: mixture }); // both are told the hash of what is there now
    };
    expect(await save(document)).toMatchObject({
      outcome: 'conflict',
      recovery_path: COPY,
      error: 'the file was changed right after it was saved'
    });
    expect(disk.files.get(COPY)?.content).toEqual(NEW);
  });

  it('believes a save that left the outputs out, as some servers do', async () => {
    const document = new OpenDocument(disk, PATH, { cells: [{ source: 'x', outputs: ['y'] }] });
    const { save: write } = disk;
    disk.save = async path => write(path, { content: { cells: [{ source: ['x'], outputs: [] }] } });
    expect(await save(document)).toMatchObject({ outcome: 'saved' });
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
