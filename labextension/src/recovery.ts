/** Recovery copies: what is open in this window, for when its own file cannot take it. */

import type { DocumentRegistry } from '@jupyterlab/docregistry';
import { PathExt } from '@jupyterlab/coreutils';
import type { Contents } from '@jupyterlab/services';
import type { PartialJSONValue } from '@lumino/coreutils';
import { isMissing } from './hashes';

type ContentsAccess = Pick<Contents.IManager, 'get' | 'save'>;
type Model = DocumentRegistry.IModel;

/** Where a copy of a document can go. */
export interface IPlaces {
  /** Beside the document, where this window can write it; null where there is no such place. */
  path: string | null;
  /** To the server, which has places that no window can write to. Its id there; raises where none takes it. */
  handOver: (content: string) => Promise<string>;
}

/** The text of a file that holds the model. */
export function fileText(model: Model, path: string): string {
  return PathExt.extname(path) === '.ipynb'
    ? `${JSON.stringify(model.toJSON(), null, 1)}\n`
    : model.toString();
}

/** Write the model to `path`, its folder made where it is missing. Raises what the server answers. */
export async function writeRecoveryCopy(
  contents: ContentsAccess,
  model: Model,
  path: string
): Promise<void> {
  await makeFolder(contents, PathExt.dirname(path));
  await contents.save(path, contentOf(model, path));
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
    if (isMissing(error)) {
      return false;
    }
    throw error;
  }
}

interface ICells {
  cells?: { source?: PartialJSONValue; outputs?: PartialJSONValue }[];
}

/** Whether a file holds what the model holds: text by its lines, a notebook by the sources and outputs of its cells. */
export function sameContent(file: unknown, model: Model, withOutputs = true): boolean {
  if (typeof file === 'string') {
    return unixLines(file) === unixLines(model.toString());
  }
  return cells(file as ICells, withOutputs) === cells(model.toJSON() as ICells, withOutputs);
}

/** A model has its own line ends, whatever those of its file are. */
function unixLines(text: string): string {
  return text.replace(/\r\n?/g, '\n');
}

function cells(notebook: ICells | null, withOutputs: boolean): string {
  const parts = (notebook?.cells ?? []).map(({ source = '', outputs = [] }) => [
    source,
    withOutputs ? outputs : []
  ]);
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
