import { NotificationManager } from '@jupyterlab/apputils';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { Api } from '../src/api';
import { Actions } from '../src/keep';
import { GuardModel } from '../src/model';
import type { IKernel } from '../src/wire';
import { loudWarning, Warnings } from '../src/warning';
import { Disk, OpenDocument } from './disk';
import { kernel, later, NOW, OpenDocuments, popUp, settle, Source, status, trans } from './samples';

let source: Source;
let documents: OpenDocuments;
let manager: NotificationManager;
let warnings: Warnings;
let kept: [string, number][];
let seen: [string, string][];

const warned = (lead: number, changes: Partial<IKernel> = {}): IKernel =>
  kernel({
    state: 'warned',
    deadline: later(lead),
    warnings: [{ at: later(-lead), lead_seconds: lead }],
    ...changes
  });

function say(...kernels: IKernel[]): void {
  source.message.emit({ type: 'status', status: status({ kernels }) });
}

beforeEach(() => {
  source = new Source();
  documents = new OpenDocuments();
  const disk = new Disk();
  disk.put('work/train.ipynb', {});
  const notebook = new OpenDocument(disk, 'work/train.ipynb', {});
  documents.open = [{ context: notebook.context, kernelId: 'k1' }];
  manager = new NotificationManager();
  kept = [];
  const api = {
    keepAlive: async (id: string, seconds: number) => void kept.push([id, seconds])
  } as unknown as Api;
  const model = new GuardModel(source, () => NOW.getTime());
  const actions = new Actions(model, api, documents, trans);
  seen = [];
  model.warningSeen.connect((_, { kernel_id, given_at }) => seen.push([kernel_id, given_at]));
  warnings = new Warnings(model, documents, actions, manager, trans, 'me');
});

afterEach(() => {
  say();
  document.body.replaceChildren();
  vi.restoreAllMocks();
});

const messages = (): string[] => manager.notifications.map(({ message }) => message);

describe('Warnings', () => {
  it('says what happens, when, what is saved and what is lost', () => {
    say(warned(900));
    expect(messages()).toEqual([
      `train.ipynb shuts down at ${clock(900)}. It is saved first. ` +
        'Variables and GPU memory are lost (no checkpoint function).'
    ]);
    expect(messages()[0]?.length).toBeLessThanOrEqual(140); // JupyterLab cuts longer ones
    expect(manager.notifications[0]?.options.autoClose).toBe(false);
    expect(manager.notifications[0]?.type).toBe('warning');
  });

  it('counts several unsaved documents and shortens long names, so that nothing is cut off', () => {
    const unsaved = { path: 'work/other.ipynb', dirty: true, client_id: 'me' };
    const notebooks = ['work/a-notebook-with-a-very-long-name.ipynb'];
    say(warned(900, { notebooks, documents: [unsaved] }));
    expect(messages()[0]).toContain('a-notebook…ng-name.ipynb shuts down at ');
    expect(messages()[0]).toContain('2 documents are saved first.');
  });

  it('changes the one notification at the next lead', () => {
    say(warned(900));
    const id = manager.notifications[0]?.id;
    say(warned(300));
    expect(manager.count).toBe(1);
    expect(manager.notifications[0]?.id).toBe(id);
    expect(messages()[0]).toContain(`shuts down at ${clock(300)}`);
  });

  it('has one for each kernel', () => {
    say(warned(900), warned(300, { kernel_id: 'k2', notebooks: ['b.ipynb'] }));
    expect(manager.count).toBe(2);
  });

  it('is quiet at the first of several leads, and not at a single one', () => {
    expect(loudWarning(warned(3600))).toBeNull();
    const policy = { name: 'p', idle_timeout_seconds: 60, warn_before_seconds: [30] };
    expect(loudWarning(warned(30, { policy }))).not.toBeNull();
    say(warned(3600));
    expect(manager.count).toBe(0);
  });

  it('goes when the kernel is in use again, is kept, or is gone', () => {
    for (const after of [[kernel({ state: 'active', warnings: [] })], []]) {
      say(warned(900));
      expect(manager.count).toBe(1);
      say(...after);
      expect(manager.count).toBe(0);
    }
  });

  it('stays away within a lead once the user has closed it, and returns at the next', () => {
    say(warned(900));
    manager.dismiss();
    say(warned(900));
    expect(manager.count).toBe(0);
    say(warned(300));
    expect(manager.count).toBe(1);
  });

  it('is left to the window that has the kernel open', () => {
    documents.open = [];
    const document = { path: 'work/train.ipynb', dirty: true, client_id: 'another window' };
    say(warned(900, { documents: [document] }));
    expect(manager.count).toBe(0);
    say(warned(900, { documents: [] }));
    expect(manager.count).toBe(1);
  });

  it('shows nothing to a user who wants none, and withdraws what it showed', () => {
    say(warned(900));
    warnings.wanted = false;
    expect(manager.count).toBe(0);
    say(warned(300));
    expect(manager.count).toBe(0);
  });

  it('tells of a stuck kernel without a deadline', () => {
    const stuck = { verdict: 'stalled', deadline: null } as const;
    say(warned(0, { ...stuck, warnings: [{ at: later(0), lead_seconds: null }] }));
    expect(messages()[0]).toMatch(/^train.ipynb: stuck\? /);
  });

  it('does not promise in "warn" what only "enforce" does', () => {
    say(warned(900, { mode: 'warn', deadline: null, would_act: later(900) }));
    expect(messages()).toEqual([`train.ipynb would be shut down at ${clock(900)} (only warning).`]);
  });

  it('keeps for the idle timeout and leaves the notification to the server', async () => {
    say(warned(900));
    const keep = manager.notifications[0]?.options.actions?.find(({ label }) => label === 'Keep');
    const event = new MouseEvent('click', { cancelable: true });
    keep?.callback(event);
    await settle();
    expect(kept).toEqual([['k1', 7200]]);
    expect(event.defaultPrevented).toBe(true);
    expect(manager.count).toBe(1);
  });

  it('gives the focus to the notebook when it goes with the button that was pressed', async () => {
    say(warned(900));
    const button = document.createElement('button');
    document.body.append(button);
    const save = manager.notifications[0]?.options.actions?.find(a => a.label === 'Save now');
    button.addEventListener('click', event => save?.callback(event));
    button.focus();
    button.click();
    await settle();
    expect(documents.focused).toBe(0);
    say(kernel({ state: 'active' }));
    expect(documents.focused).toBe(1);
    say(warned(300));
    document.body.focus();
    button.blur(); // somebody is elsewhere by now
    say(kernel({ state: 'active' }));
    expect(documents.focused).toBe(1);
  });

  it('tells once for each lead that it was seen, and not what is known', async () => {
    vi.spyOn(document, 'hasFocus').mockReturnValue(true);
    say(warned(900));
    expect(seen).toEqual([]);
    popUp(manager.notifications[0]?.id ?? '');
    await vi.waitFor(() => expect(seen).toEqual([['k1', later(-900)]]));
    say(warned(900));
    say(warned(300));
    expect(seen.slice(1)).toEqual([['k1', later(-300)]]);
    say(warned(60, { warnings: [{ at: later(-60), lead_seconds: 60, seen_at: later(-50) }] }));
    expect(seen).toHaveLength(2);
  });

  it('was not seen where it went before anybody looked', async () => {
    vi.spyOn(document, 'hasFocus').mockReturnValue(false);
    say(warned(900));
    popUp(manager.notifications[0]?.id ?? '');
    say(kernel({ state: 'active' }));
    vi.mocked(document.hasFocus).mockReturnValue(true);
    window.dispatchEvent(new Event('focus'));
    expect(seen).toEqual([]);
  });

  it('offers no keeping where the user may not keep', () => {
    say(warned(900, { keep_alive_remaining_seconds: 0 }));
    const labels = manager.notifications[0]?.options.actions?.map(({ label }) => label);
    expect(labels).toEqual(['Save now', 'Shut down now']);
  });

  it('updates only at a lead, not at every change', () => {
    const update = vi.spyOn(manager, 'update');
    say(warned(900));
    say(warned(900, { idle_seconds: 4600 }));
    expect(update).not.toHaveBeenCalled();
  });
});

function clock(seconds: number): string {
  return new Intl.DateTimeFormat(undefined, {
    hour: '2-digit',
    minute: '2-digit',
    timeZoneName: 'short'
  }).format(new Date(later(seconds)));
}
