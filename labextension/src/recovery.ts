/** Recovery copies: what is open in this window, written beside the file it could not be written to. */

import type { DocumentRegistry } from '@jupyterlab/docregistry';
import { PathExt } from '@jupyterlab/coreutils';
import type { Contents } from '@jupyterlab/services';
import type { PartialJSONValue } from '@lumino/coreutils';

type ContentsAccess = Pick<Contents.IManager, 'get' | 'save'>;
type Model = DocumentRegistry.IModel;

/**
 * Write the model to `path` and give the path used: another window's copy of the same name is not written over.
 * Raises what the server answers.
 */
export async function writeRecoveryCopy(
  contents: ContentsAccess,
  model: Model,
  path: string,
  clientId: string
): Promise<string> {
  await makeFolder(contents, PathExt.dirname(path));
  const free = (await exists(contents, path)) ? withSuffix(path, clientId) : path;
  await contents.save(free, contentOf(model, free));
  return free;
}

function contentOf(model: Model, path: string): Partial<Contents.IModel> {
  if (PathExt.extname(path) === '.ipynb') {
    return { type: 'notebook', format: 'json', content: model.toJSON() };
  }
  return { type: 'file', format: 'text', content: model.toString() };
}

async function makeFolder(contents: ContentsAccess, folder: string): Promise<void> {
  if (folder === '' || folder === '.' || (await exists(contents, folder))) {
    return;
  }
  await makeFolder(contents, PathExt.dirname(folder));
  await contents.save(folder, { type: 'directory' });
}

async function exists(contents: ContentsAccess, path: string): Promise<boolean> {
  try {
    await contents.get(path, { content: false });
    return true;
  } catch (error) {
    if ((error as { response?: Response }).response?.status === 404) {
      return false;
    }
    throw error;
  }
}

/** `a/b.ipynb` -> `a/b-1f3c9a02.ipynb` */
function withSuffix(path: string, clientId: string): string {
  const extension = PathExt.extname(path);
  return `${path.slice(0, path.length - extension.length)}-${clientId.slice(0, 8)}${extension}`;
}

interface ICells {
  cells?: { source?: PartialJSONValue; outputs?: PartialJSONValue }[];
}

/** Whether a file holds what the model holds: text exactly, a notebook by the sources and outputs of its cells. */
export function sameContent(file: unknown, model: Model): boolean {
  if (typeof file === 'string') {
    return file === model.toString();
  }
  return cells(file as ICells) === cells(model.toJSON() as ICells);
}

function cells(notebook: ICells | null): string {
  const parts = notebook?.cells?.map(cell => [cell.source ?? '', cell.outputs ?? []]) ?? [];
  return JSON.stringify(parts, joined);
}

/** Formats let a text be a list of lines; keys may come in any order. */
function joined(_key: string, value: unknown): unknown {
  if (Array.isArray(value)) {
    const lines = value.length > 0 && value.every(item => typeof item === 'string');
    return lines ? value.join('') : value;
  }
  if (typeof value === 'object' && value !== null) {
    return Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)));
  }
  return value;
}
