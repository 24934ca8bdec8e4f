import { Dialog, Notification } from '@jupyterlab/apputils';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type Api, ApiError } from '../src/api';
import { Actions, keepChoices, longestKeep, plainKeep } from '../src/keep';
import { GuardModel } from '../src/model';
import { Disk, OpenDocument } from './disk';
import { kernel, NOW, OpenDocuments, Source, status, trans } from './samples';

const LOST = 'Variables and GPU memory are lost (no checkpoint function).';

describe('how long to keep', () => {
  it.each([
    [57600, 86400, 57600],
    [57600, 1800.9, 1800],
    [57600, null, 57600],
    [null, 86400, 86400],
    [null, null, 0],
    [0, 86400, 0]
  ])('at most %s at once and %s in all make %i', (once, remaining, longest) => {
    expect(longestKeep(kernel({ keep_alive_remaining_seconds: remaining }), once)).toBe(longest);
  });

  it("goes by the kernel's own limit where there is one", () => {
    expect(longestKeep(kernel({ keep_alive_max_seconds: 60 }), 57600)).toBe(60);
  });

  it('starts the clock afresh: the idle timeout, or what is allowed', () => {
    expect(plainKeep(kernel(), 57600)).toBe(7200);
    expect(plainKeep(kernel(), 600)).toBe(600);
    const never = { name: 'p', idle_timeout_seconds: 0, warn_before_seconds: [] };
    expect(plainKeep(kernel({ policy: never }), 57600)).toBe(3600);
  });

  it('offers an hour, four, and until ten tomorrow', () => {
    // 14:00 in the zone of the tests: twenty hours to go.
    const choices = keepChoices(NOW, 24 * 3600, trans);
    expect(choices.map(({ seconds }) => seconds)).toEqual([3600, 14400, 20 * 3600]);
    expect(choices[2]?.label).toMatch(/^until tomorrow, 10:00/);
  });

  it('offers nothing that would be refused, but the most that would not', () => {
    const choices = keepChoices(NOW, 5400, trans);
    expect(choices.map(({ label }) => label)).toEqual(['1 hour', '1 h 30 min (the most allowed)']);
  });
});

describe('Actions', () => {
  let documents: OpenDocuments;
  let calls: string[];
  let refusal: ApiError | null;
  let actions: Actions;

  beforeEach(() => {
    const source = new Source();
    const model = new GuardModel(source, () => NOW.getTime());
    source.message.emit({ type: 'status', status: status() });
    documents = new OpenDocuments();
    calls = [];
    refusal = null;
    const act = async (call: string): Promise<void> => {
      calls.push(call);
      if (refusal) {
        throw refusal;
      }
    };
    const api = {
      keepAlive: (id: string, seconds: number) => act(`keep ${id} ${seconds}`),
      endKeepAlive: (id: string) => act(`release ${id}`),
      shutDown: (id: string) => act(`shut down ${id}`)
    } as unknown as Api;
    actions = new Actions(model, api, documents, trans);
  });

  afterEach(() => {
    Dialog.flush();
    Notification.dismiss();
  });

  /** Press the button of that name in the dialog that is open. */
  async function press(label: string): Promise<void> {
    const buttons = (): HTMLButtonElement[] => [...document.querySelectorAll('button')];
    await vi.waitFor(() => expect(buttons().some(b => b.textContent === label)).toBe(true));
    buttons()
      .find(button => button.textContent === label)
      ?.click();
  }

  it('shuts down only after a confirmation that says what is saved and lost', async () => {
    const disk = new Disk();
    disk.put('work/train.ipynb', {});
    const notebook = new OpenDocument(disk, 'work/train.ipynb', {});
    documents.open = [{ context: notebook.context, kernelId: 'k1' }];
    const first = actions.askAndShutDown(kernel());
    await vi.waitFor(() =>
      expect(document.querySelector('.jp-Dialog-body')?.textContent).toBe(
        `Saved first: train.ipynb. ${LOST}`
      )
    );
    await press('Cancel');
    expect(await first).toBe(false);
    expect(calls).toEqual([]);
    const second = actions.askAndShutDown(kernel());
    await press('Save and shut down');
    expect(await second).toBe(true);
    expect(calls).toEqual(['shut down k1']);
  });

  /** Press this key where the menu is. */
  const key = (code: number): unknown =>
    document
      .querySelector('.lm-Menu')
      ?.dispatchEvent(new KeyboardEvent('keydown', { keyCode: code, bubbles: true }));

  it('asks for how long in a menu, and keeps', async () => {
    const asked = actions.askAndKeep(kernel(), document.body);
    const labels = [...document.querySelectorAll('.lm-Menu-itemLabel')].map(l => l.textContent);
    expect(labels).toEqual(['1 hour', '4 hours', '16 h (the most allowed)']);
    key(40);
    key(40);
    key(13);
    expect(await asked).toBe(true);
    expect(calls).toEqual(['keep k1 14400']);
  });

  it('keeps nothing when nothing is chosen', async () => {
    const asked = actions.askAndKeep(kernel(), document.body);
    key(27);
    expect(await asked).toBe(false);
    expect(calls).toEqual([]);
  });

  it('says what is lost, with a checkpoint function and without', () => {
    expect(actions.whatIsLost(kernel({ has_checkpoint: true }))).toBe(
      'Your checkpoint function runs first; other variables and GPU memory are lost.'
    );
    expect(actions.whatIsLost(kernel())).toBe(LOST);
  });

  it('tells of a refusal with the limit', async () => {
    const params = { limit_seconds: 1800 };
    const reason = { code: 'keep_alive_used_up', params, text: 'English' };
    refusal = new ApiError(403, 'English', reason);
    expect(await actions.keep(kernel())).toBe(false);
    expect(Notification.manager.notifications.map(n => [n.type, n.message])).toEqual([
      ['error', 'This notebook may be kept for only 30 min more.']
    ]);
  });

  it('names unsaved documents of other windows too, each once', () => {
    const elsewhere = ['a/b.ipynb', 'a/b.ipynb', 'c.ipynb'].map(path => ({
      path,
      dirty: path !== 'c.ipynb',
      client_id: 'another'
    }));
    expect(actions.whatIsSaved(kernel({ documents: elsewhere }))).toBe('Saved first: b.ipynb.');
    expect(actions.whatIsSaved(kernel())).toBe('Nothing is unsaved.');
  });

  it('saves the unsaved documents of that kernel now', async () => {
    const disk = new Disk();
    const opened = (path: string, dirty: boolean, kernelId: string): OpenDocument => {
      disk.put(path, {});
      const notebook = new OpenDocument(disk, path, {}, dirty);
      documents.open.push({ context: notebook.context, kernelId });
      return notebook;
    };
    const wanted = opened('a.ipynb', true, 'k1');
    const others = [opened('b.ipynb', false, 'k1'), opened('c.ipynb', true, 'k2')];
    await actions.saveNow('k1');
    expect(wanted.saves).toBe(1);
    expect(others.map(({ saves }) => saves)).toEqual([0, 0]);
  });
});
