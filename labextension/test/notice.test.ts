import { NotificationManager } from '@jupyterlab/apputils';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { GuardModel } from '../src/model';
import { noticeLines, Notices, noticeText } from '../src/notice';
import type { IKernel, ITombstone } from '../src/wire';
import { Disk, OpenDocument } from './disk';
import {
  kernel,
  later,
  NOW,
  OpenDocuments,
  popUp,
  settle,
  Source,
  status,
  tombstone,
  trans
} from './samples';

const PATH = 'work/train.ipynb';

describe('the text', () => {
  it('says when, why and what was lost', () => {
    const at = new Intl.DateTimeFormat(undefined, {
      hour: '2-digit',
      minute: '2-digit',
      timeZoneName: 'short'
    }).format(new Date(later(-60)));
    expect(noticeText(tombstone(), trans, NOW)).toBe(
      `train.ipynb was shut down at ${at}. The limit for unused kernels is 2 h. ` +
        'Lost: variables and GPU memory.'
    );
  });

  it('says in full what was saved where, who did not answer, and how to go on', () => {
    const row = { path: PATH, hash: null, recovery_path: null, recovery_id: null };
    const stone = tombstone({
      saved: [
        { ...row, outcome: 'saved' },
        {
          ...row,
          path: 'b.ipynb',
          outcome: 'recovered',
          recovery_path: 'gpu_guard_recovery/b.ipynb'
        },
        { ...row, path: 'c.ipynb', outcome: 'failed' }
      ],
      unanswered: [{ client_id: 'x', path: 'd.ipynb', last_seen_dirty: true }],
      survivors: 2
    });
    const lines = noticeLines(stone, trans, NOW);
    expect(lines).toEqual(
      expect.arrayContaining([
        'train.ipynb: saved.',
        'b.ipynb: the open copy is in gpu_guard_recovery/b.ipynb.',
        'c.ipynb: not saved.',
        'd.ipynb: a tab with unsaved edits did not answer; they are still in it.',
        '2 of its processes are still running.',
        '4.0 GiB of GPU memory came free.'
      ])
    );
    expect(lines.at(-1)).toBe(
      'To go on, run the notebook from the top: its next kernel starts empty.'
    );
    expect(lines[2]).toMatch(/^Warned at /);
  });
});

describe('Notices', () => {
  let source: Source;
  let documents: OpenDocuments;
  let manager: NotificationManager;
  let notices: Notices;
  let stones: ITombstone[];
  let asked: string[];
  let opened: string[];
  let passed: number;

  beforeEach(() => {
    localStorage.clear();
    stones = [tombstone()];
    vi.spyOn(document, 'hasFocus').mockReturnValue(true);
    build();
  });

  afterEach(() => {
    document.body.replaceChildren();
    vi.restoreAllMocks();
  });

  /** As after a reload of the page. */
  function build(): void {
    source = new Source();
    documents = new OpenDocuments();
    manager = new NotificationManager();
    asked = [];
    opened = [];
    passed = 0;
    const api = {
      tombstone: async (id: string) => {
        asked.push(id);
        return tombstone();
      },
      tombstonesOf: async (path: string) => {
        asked.push(path);
        return stones;
      },
      recoveryUrl: (id: string) => `/recovery/${id}`
    };
    const model = new GuardModel(source, () => NOW.getTime() + passed);
    const open = (path: string): void => void opened.push(path);
    notices = new Notices(model, api, documents, manager, open, trans, 'me');
  }

  function open(path = PATH): void {
    const disk = new Disk();
    disk.put(path, {});
    const notebook = new OpenDocument(disk, path, {});
    documents.open = [{ context: notebook.context, kernelId: 'k9' }];
    documents.opened.emit(notebook.context);
  }

  const answered = (...kernels: IKernel[]): void =>
    source.message.emit({ type: 'status', status: status({ kernels }) });

  const culled = (): void =>
    source.message.emit({ type: 'culled', kernel_id: 'k1', tombstone_url: 'tombstones/k1' });

  it('tells the window that has the notebook open, at once', async () => {
    stones = [];
    answered(kernel());
    open();
    culled();
    await settle();
    expect(manager.notifications.map(n => n.message)).toEqual([
      noticeText(tombstone(), trans, NOW)
    ]);
    expect(notices.endedAt(PATH)).toBe(later(-60));
  });

  it('leaves it to another window that has it open', async () => {
    const document = { path: PATH, dirty: false, client_id: 'another' };
    answered(kernel({ documents: [document] }));
    culled();
    await settle();
    expect(manager.count).toBe(0);
  });

  it('tells when the notebook is opened later, once in a browser', async () => {
    open();
    await settle();
    expect(asked).toEqual([]); // the server has not said that it has a guard
    answered();
    await settle();
    expect(asked).toEqual([PATH]);
    expect(manager.count).toBe(1);
    build();
    answered();
    open();
    await settle();
    expect(manager.count).toBe(0);
  });

  it('asks once for each path', async () => {
    answered();
    open();
    open();
    await settle();
    expect(asked).toEqual([PATH]);
  });

  it('tells of the newest end only', async () => {
    stones = [
      tombstone({ kernel_id: 'old', ended_at: later(-9000) }),
      tombstone({ kernel_id: 'new', ended_at: later(-30) })
    ];
    answered();
    open();
    await settle();
    expect(notices.endedAt(PATH)).toBe(later(-30));
    expect(manager.count).toBe(1);
  });

  it.each([
    ['somebody has gone on since', -3600, -7200, 0],
    ['this opening has started the kernel', -5, -7200, 1],
    ['the kernel is older than that end', -9000, -7200, 1]
  ])('where %s', async (_, started, ended, shown) => {
    stones = [tombstone({ ended_at: later(ended) })];
    answered(kernel({ kernel_id: 'k9', started: later(started) }));
    open();
    await settle();
    expect(manager.count).toBe(shown);
  });

  it('offers to open the recovery copy', async () => {
    const recovery_path = 'work/gpu_guard_recovery/train-1.ipynb';
    const saved = {
      path: PATH,
      outcome: 'recovered',
      hash: null,
      recovery_path,
      recovery_id: null
    };
    stones = [tombstone({ saved: [saved] })];
    answered();
    open();
    await settle();
    const actions = manager.notifications[0]?.options.actions ?? [];
    expect(actions.map(({ label }) => label)).toEqual(['Open the copy', 'Details']);
    actions[0]?.callback(new MouseEvent('click'));
    expect(opened).toEqual([recovery_path]);
  });

  it('offers what a window wrote and what the server keeps, each its own way', async () => {
    const row = { path: PATH, outcome: 'recovered', hash: null };
    const saved = [
      { ...row, recovery_path: 'copies/train-1.ipynb', recovery_id: 'id-1' },
      { ...row, recovery_path: null, recovery_id: 'id-2' }
    ];
    stones = [tombstone({ saved })];
    answered();
    open();
    await settle();
    const actions = manager.notifications[0]?.options.actions ?? [];
    const labels = actions.map(({ label }) => label);
    expect(labels).toEqual(['Open the copy', 'Download the copy', 'Details']);
    const followed: string[] = [];
    const click = vi.spyOn(HTMLAnchorElement.prototype, 'click').mockImplementation(function (
      this: HTMLAnchorElement
    ) {
      followed.push(this.href);
    });
    actions[1]?.callback(new MouseEvent('click'));
    click.mockRestore();
    expect(followed).toEqual([expect.stringMatching(/\/recovery\/id-2$/)]);
  });

  /** JupyterLab shows the notifications that there are, and time to read them passes. */
  async function show(): Promise<void> {
    manager.notifications.forEach(({ id }) => popUp(id));
    await new Promise(resolve => setTimeout(resolve));
    passed += 5_000;
  }

  it('goes when a cell of the notebook runs in its next kernel', async () => {
    answered();
    open();
    await settle();
    await show();
    documents.changed.emit(); // the opening starts a kernel by itself: nobody has gone on by that
    documents.ran.emit('work/another.ipynb');
    expect(manager.count).toBe(1);
    documents.ran.emit(PATH);
    expect(manager.count).toBe(0);
    expect(notices.endedAt(PATH)).toBe(later(-60));
  });

  it('goes when a newer one for the notebook comes', async () => {
    answered();
    open();
    await settle();
    await show();
    const [old] = manager.notifications;
    culled();
    await settle();
    expect(manager.count).toBe(1);
    expect(manager.notifications[0]?.id).not.toBe(old?.id);
  });

  it('stays as long as nobody can have read it', async () => {
    vi.mocked(document.hasFocus).mockReturnValue(false);
    answered();
    open();
    await settle();
    await show();
    documents.ran.emit(PATH);
    culled();
    await settle();
    expect(manager.count).toBe(2);
    vi.mocked(document.hasFocus).mockReturnValue(true);
    window.dispatchEvent(new Event('focus'));
    passed += 4_999;
    documents.ran.emit(PATH);
    expect(manager.count).toBe(2);
    passed += 1;
    documents.ran.emit(PATH);
    expect(manager.notifications).toHaveLength(1); // the newer one was never shown
  });

  it('tells of failures in one notification for each kernel', () => {
    answered(kernel());
    const reason = (path: string) => ({
      code: 'save_failed',
      params: { path, error: 'disk full' },
      text: ''
    });
    source.message.emit({ type: 'save_failed', kernel_id: 'k1', reason: reason('a.ipynb') });
    source.message.emit({ type: 'save_failed', kernel_id: 'k1', reason: reason('b.ipynb') });
    expect(manager.notifications.map(n => [n.type, n.message])).toEqual([
      ['warning', 'train.ipynb was not shut down. Saving b.ipynb failed: disk full']
    ]);
  });

  it('is silent for a user who wants no notifications, but knows', async () => {
    notices.wanted = false;
    answered();
    open();
    await settle();
    expect(manager.count).toBe(0);
    expect(notices.endedAt(PATH)).toBe(later(-60));
  });
});
