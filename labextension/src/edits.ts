/**
 * Keeps a document marked as unsaved when it was edited while it was being saved.
 *
 * JupyterLab takes the content, waits for the server, and then marks the document as saved, edits of the meantime
 * included (jupyterlab#17365). The guard asks "is it unsaved?" before a kernel goes, so the mark has to be true.
 */

import type { Context } from './documents';

export function keepDirtyAfterEdits(context: Context): void {
  let saving = false;
  let edited = false;
  context.model.contentChanged.connect(() => {
    edited = edited || saving;
  });
  context.saveState.connect((_, state) => {
    if (state === 'started') {
      saving = true;
      edited = false;
      return;
    }
    if (state === 'completed' && edited && !context.model.collaborative) {
      context.model.dirty = true;
    }
    saving = false;
  });
}
