/** The hash of a file as it lies on disk, as the server compares it. */

import type { Contents } from '@jupyterlab/services';

type ContentsAccess = Pick<Contents.IManager, 'get'>;

export interface IDisk {
  hash: string | null;
  writable: boolean;
  /** Milliseconds since 1970. */
  modified: number;
}

/** The file without its content; null where there is none. Raises what else the server answers. */
export async function onDisk(contents: ContentsAccess, path: string): Promise<IDisk | null> {
  try {
    const file = await contents.get(path, { content: false, hash: true });
    return {
      hash: file.hash ?? (await sha256(contents, path)),
      writable: file.writable,
      modified: Date.parse(file.last_modified)
    };
  } catch (error) {
    if (isMissing(error)) {
      return null;
    }
    throw error;
  }
}

export function isMissing(error: unknown): boolean {
  return (error as { response?: Response }).response?.status === 404;
}

/**
 * For files kept where no hashes are known: SHA-256 of their bytes, which the server computes likewise. Null on pages
 * that came over plain HTTP from elsewhere, where browsers give no cryptography.
 */
async function sha256(contents: ContentsAccess, path: string): Promise<string | null> {
  if (!globalThis.crypto?.subtle) {
    return null;
  }
  const file = await contents.get(path, { type: 'file', format: 'base64', content: true });
  const bytes = Uint8Array.from(atob(String(file.content)), char => char.charCodeAt(0));
  const digest = new Uint8Array(await crypto.subtle.digest('SHA-256', bytes));
  return Array.from(digest, byte => byte.toString(16).padStart(2, '0')).join('');
}
