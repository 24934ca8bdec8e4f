/** What other extensions may ask for. */

import { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';
import type { Api } from './api';
import type { IDocuments } from './documents';
import type { GuardModel } from './model';

export interface IGpuGuard {
  readonly model: GuardModel;
  readonly api: Api;
  readonly documents: IDocuments;
  /** The name of this page towards the server. */
  readonly clientId: string;
}

export const IGpuGuard = new Token<IGpuGuard>(
  'jupyter-gpu-guard:IGpuGuard',
  'GPU use of each kernel, its countdown, and ways to keep it.'
);

/** What the user has chosen in the settings. */
export interface IPreferences {
  readonly notifications: boolean;
  readonly statusItem: boolean;
  /** Call back now and at every change. */
  follow(callback: () => void): void;
}

export const IPreferences = new Token<IPreferences>(
  'jupyter-gpu-guard:IPreferences',
  'What the user wants to see of GPU Guard.'
);

/** What is known of kernels that were shut down. */
export interface INotices {
  /** `endedAt` gives another answer for some notebook. */
  readonly changed: ISignal<unknown, void>;
  /** When the last kernel of a notebook was shut down, ISO 8601; null where nothing is known of that. */
  endedAt(path: string): string | null;
}

export const INotices = new Token<INotices>(
  'jupyter-gpu-guard:INotices',
  'Which notebooks have had their kernel shut down.'
);
