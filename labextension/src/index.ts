/** The plugins. Each part can be switched off on its own; only the client is needed by the others. */

import type { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { IConsoleTracker } from '@jupyterlab/console';
import { IDocumentManager } from '@jupyterlab/docmanager';
import { INotebookTracker } from '@jupyterlab/notebook';
import { ServerConnection } from '@jupyterlab/services';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import { ITranslator, nullTranslator, type TranslationBundle } from '@jupyterlab/translation';
import { Api } from './api';
import { Documents } from './documents';
import { keepDirtyAfterEdits } from './edits';
import { Actions } from './keep';
import { GuardModel } from './model';
import { Notices } from './notice';
import { Preferences } from './preferences';
import { newClientId, Reporter } from './reporter';
import { SaveResponder } from './responder';
import { Saver } from './saving';
import { followEnds } from './sessions';
import { StatusItem } from './statusbar';
import { Stream } from './stream';
import { IGpuGuard, INotices, IPreferences } from './tokens';
import { Warnings } from './warning';

function bundle(translator: ITranslator | null): TranslationBundle {
  return (translator ?? nullTranslator).load('jupyter_gpu_guard');
}

function actionsOf(guard: IGpuGuard, t: TranslationBundle): Actions {
  return new Actions(guard.model, guard.api, guard.documents, t);
}

/** Its id is that of the settings schema. */
const preferences: JupyterFrontEndPlugin<IPreferences> = {
  id: 'jupyter-gpu-guard:plugin',
  description: 'What the user wants to see of GPU Guard.',
  autoStart: true,
  provides: IPreferences,
  optional: [ISettingRegistry],
  activate: (_: JupyterFrontEnd, registry: ISettingRegistry | null) => {
    const wishes = new Preferences();
    registry?.load('jupyter-gpu-guard:plugin').then(
      settings => wishes.read(settings),
      (error: unknown) => console.warn('GPU Guard: no settings, so the defaults hold.', error)
    );
    return wishes;
  }
};

const client: JupyterFrontEndPlugin<IGpuGuard> = {
  id: 'jupyter-gpu-guard:client',
  description: 'Listens to the guard of this server.',
  autoStart: true,
  provides: IGpuGuard,
  requires: [IDocumentManager],
  optional: [INotebookTracker, IConsoleTracker],
  activate: (
    app: JupyterFrontEnd,
    manager: IDocumentManager,
    notebooks: INotebookTracker | null,
    consoles: IConsoleTracker | null
  ) => {
    const clientId = newClientId();
    const api = new Api(ServerConnection.makeSettings());
    const stream = new Stream({
      open: () => api.openSocket(clientId),
      probe: () => api.status(clientId)
    });
    const model = new GuardModel(stream);
    const documents = new Documents(app.shell, manager, notebooks, consoles);
    // Not before every plugin listens: the first message may already ask for a save.
    void app.started.then(() => stream.start());
    return { api, model, documents, clientId };
  }
};

const reporting: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpu-guard:reporting',
  description: 'Tells the server which documents are open and unsaved, and that somebody is there.',
  autoStart: true,
  requires: [IGpuGuard],
  activate: (_: JupyterFrontEnd, guard: IGpuGuard) => {
    const reporter = new Reporter(guard.api, guard.clientId, guard.documents, id =>
      guard.model.kernel(id)
    );
    guard.model.warningSeen.connect((_, seen) => reporter.saw(seen));
    let before = guard.model.connection;
    guard.model.changed.connect(() => {
      const now = guard.model.connection;
      if (now !== before && (now === 'live' || now === 'polling')) {
        reporter.reintroduce();
      }
      before = now;
    });
  }
};

const saving: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpu-guard:saving',
  description: 'Saves what is open on a kernel when the guard asks for it.',
  autoStart: true,
  requires: [IGpuGuard],
  activate: (app: JupyterFrontEnd, guard: IGpuGuard) => {
    const { model, api, documents, clientId } = guard;
    const saver = new Saver(app.serviceManager.contents);
    new SaveResponder(model, api, documents, saver, clientId);
    documents.opened.connect((_, context) => keepDirtyAfterEdits(context));
  }
};

const sessions: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpu-guard:sessions',
  description: 'Shows at once that a notebook has no kernel any more.',
  autoStart: true,
  requires: [IGpuGuard],
  activate: (app: JupyterFrontEnd, guard: IGpuGuard) => followEnds(guard.model, app.serviceManager)
};

const notices: JupyterFrontEndPlugin<INotices> = {
  id: 'jupyter-gpu-guard:notices',
  description: 'Says why a kernel was shut down, what was saved and how to go on.',
  autoStart: true,
  provides: INotices,
  requires: [IGpuGuard, IPreferences, IDocumentManager],
  optional: [ITranslator],
  activate: (
    _: JupyterFrontEnd,
    guard: IGpuGuard,
    wishes: IPreferences,
    manager: IDocumentManager,
    translator: ITranslator | null
  ) => {
    const { model, api, documents, clientId } = guard;
    const open = (path: string): void => void manager.openOrReveal(path);
    const t = bundle(translator);
    const shown = new Notices(model, api, documents, Notification.manager, open, t, clientId);
    wishes.follow(() => {
      shown.wanted = wishes.notifications;
    });
    return shown;
  }
};

const warnings: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpu-guard:warnings',
  description: 'Notifies before a kernel is shut down.',
  autoStart: true,
  requires: [IGpuGuard, IPreferences],
  optional: [ITranslator],
  activate: (
    _: JupyterFrontEnd,
    guard: IGpuGuard,
    wishes: IPreferences,
    translator: ITranslator | null
  ) => {
    const { model, documents, clientId } = guard;
    const t = bundle(translator);
    const shown = new Warnings(
      model,
      documents,
      actionsOf(guard, t),
      Notification.manager,
      t,
      clientId
    );
    wishes.follow(() => {
      shown.wanted = wishes.notifications;
    });
  }
};

const statusItem: JupyterFrontEndPlugin<void> = {
  id: 'jupyter-gpu-guard:status-bar',
  description: 'Shows GPU use and countdown of the notebook in front.',
  autoStart: true,
  requires: [IGpuGuard, IPreferences],
  optional: [IStatusBar, ITranslator, INotices],
  activate: (
    app: JupyterFrontEnd,
    guard: IGpuGuard,
    wishes: IPreferences,
    statusBar: IStatusBar | null,
    translator: ITranslator | null,
    ends: INotices | null
  ) => {
    const t = bundle(translator);
    const item = new StatusItem(guard.model, guard.documents, actionsOf(guard, t), t, ends);
    item.id = 'jupyter-gpu-guard-status';
    wishes.follow(() => {
      item.wanted = wishes.statusItem;
    });
    if (statusBar) {
      // With a priority it stays in a window that is narrow, or zoomed in.
      const place = { align: 'right', rank: 20, priority: 1 } as const;
      statusBar.registerStatusItem('jupyter-gpu-guard:status', { item, ...place });
    } else {
      item.addClass('jp-GpuGuard-menuItem');
      app.shell.add(item, 'menu', { rank: 900 });
    }
  }
};

export * from './tokens';
export default [preferences, client, reporting, saving, sessions, notices, warnings, statusItem];
